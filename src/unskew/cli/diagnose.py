"""`unskew diagnose`: measure the skew of a federation, and recommend a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from unskew.cli.options import Positional, with_settings
from unskew.diagnosis import RELEVANT_SETTINGS


@dataclass(frozen=True)
class Arguments:
    """The options of the command, in addition to the settings that a run shares."""

    data: Annotated[
        str, Positional(), "a path, or a data set by name; arguments in brackets: scans/(size=128)"
    ]
    label: Annotated[str, "in a table: the column of labels"] = ""
    target: Annotated[
        str,
        "the number to predict: a table's column, or what y is called; or several labels, joined by commas",
    ] = ""
    site: Annotated[str, "the column that says where a row is from; each of its values is a site"] = ""
    group: Annotated[
        str, "samples that belong together: a column, such as patient, or a pattern of files"
    ] = ""
    features: Annotated[bool, "sites may share activations of single samples, so advise methods that do"] = (
        False
    )
    json: Annotated[bool, "print the diagnosis as JSON and nothing else"] = False


@with_settings(Arguments, RELEVANT_SETTINGS)
def command(arguments: Arguments, given: dict[str, Any]) -> None:
    """Measure the skew of a federation, and recommend a method with its expected gain."""
    from unskew.cli.screen import json_of
    from unskew.diagnosis.diagnose import diagnose

    named = {
        "label": arguments.label,
        "site": arguments.site,
        "target": arguments.target,
        "group": arguments.group,
        "features": arguments.features,
    }
    diagnosis = diagnose(arguments.data, **named, **given)
    print(json_of(diagnosis.as_dict()) if arguments.json else diagnosis.table())
