"""`unskew audit`: measure a lower bound on epsilon with canaries in one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from unskew.cli import attack
from unskew.cli.options import with_options


@dataclass(frozen=True)
class Arguments:
    """The options of the command."""

    run: Annotated[Path, "folder of a finished run"]
    set: Annotated[tuple[str, ...], "a setting of the audit, such as unit=client (repeatable)"] = ()
    samples: Annotated[int | None, Ge(1), Le(1_000_000), "the most canaries; 1000 if left out"] = None
    seeds: Annotated[
        int, Ge(1), Le(100), "how often the run is trained anew, each time with other canaries"
    ] = 1
    method: Annotated[
        str | None, "the method of a run of which a Part is in a Python file, with your own file"
    ] = None
    model: Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"] = None
    json: Annotated[bool, "print what was measured as JSON and nothing else"] = False


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Train a finished run again with canaries, and measure which epsilon its model refutes.

    privacy.json and the report show this bound next to the epsilon that the run claims; docs/privacy.md
    explains it.
    """
    attack.perform_and_print(attack.Arguments(attack="audit", **vars(arguments)))
