"""`unskew attack`: measure what a reader of a finished run's payloads can learn about the clients'
samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from unskew.cli.options import Positional, with_options
from unskew.errors import UsageError

if TYPE_CHECKING:
    from unskew.attacks.scene import Scene


@dataclass(frozen=True)
class Arguments:
    """The options of the command."""

    run: Annotated[Path, "folder of a finished run"]
    attack: Annotated[str | None, Positional(), "an attack by name; all that fit the run if left out"] = None
    set: Annotated[tuple[str, ...], "a setting of the attack, such as shadows=32 (repeatable)"] = ()
    samples: Annotated[
        int | None, Ge(1), Le(1_000_000), "the most samples that are attacked; each attack has a default"
    ] = None
    seeds: Annotated[int, Ge(1), Le(100), "how often the attack is made, each time with another seed"] = 1
    data: Annotated[
        tuple[str, ...],
        "SITE=PATH: a site's samples, to attack a run of sites; of all sites, to attack their replies, too"
        " (repeatable)",
    ] = ()
    pictures: Annotated[bool, "keep pictures beside samples of the sites in privacy.json and the report"] = (
        False
    )
    merged: Annotated[
        bool, "with --data: attack the merged model alone, although rounds could be computed again"
    ] = False
    method: Annotated[
        str | None, "the method of a run of which a Part is in a Python file, with your own file"
    ] = None
    model: Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"] = None
    json: Annotated[bool, "print what was measured as JSON and nothing else"] = False


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Attack a finished run, and write the measurements into its privacy.json and its report.

    `unskew list attacks` lists all attacks; docs/privacy.md explains them.
    """
    perform_and_print(arguments)


def perform_and_print(arguments: Arguments) -> None:
    """Perform the attack, write the run's report, and print the measurements."""
    from unskew.attacks.perform import perform
    from unskew.cli.screen import json_of
    from unskew.report import page

    settings = _settings(arguments)
    say = (lambda _: None) if arguments.json else print
    findings = perform(partial(_run, arguments), arguments.attack, settings, arguments.seeds, say)
    report = page.write_report([arguments.run], arguments.run / "report.html")
    print(json_of(findings) if arguments.json else f"report  {report}")


def _run(arguments: Arguments) -> Scene:
    """The scene of the attack: the run, and with `--data` also the samples of the sites.

    Raises UsageError (E126) for --pictures or --merged without --data.
    """
    from unskew.attacks.scene import Scene
    from unskew.runs.reopen import UserCode

    code = UserCode(arguments.method, arguments.model)
    if arguments.data:
        from unskew.federation.network_replay import open_replay

        return open_replay(arguments.run, arguments.data, arguments.pictures, code, arguments.merged)
    if arguments.pictures:
        raise UsageError("E126", "--pictures belongs to --data; pictures of a simulated run are always kept.")
    if arguments.merged:
        raise UsageError(
            "E126", "--merged belongs to --data; the rounds of a simulated run can be computed again."
        )
    return Scene(arguments.run, code=code)


def _settings(arguments: Arguments) -> dict[str, object]:
    """The settings of the attack in --set and --samples.

    Raises UsageError (E126) for an entry that is not name=value, and for --set without the name of an attack.
    """
    from unskew.formats import calls

    settings: dict[str, object] = {}
    for pair in arguments.set:
        name, equals, value = pair.partition("=")
        if not (equals and name):
            raise UsageError("E126", f"--set takes setting=value, such as shadows=32; got '{pair}'.")
        settings[name.strip()] = calls.parse_value(value, name, "E126")
    if settings and not arguments.attack:
        raise UsageError(
            "E126",
            "--set belongs to one attack; name it, as in: unskew attack RUN membership --set shadows=32",
        )
    if arguments.samples is not None:
        settings["samples"] = arguments.samples
    return settings
