"""`unskew attack`: what a reader of a finished run's payloads can learn about the clients' samples;
`unskew audit`: a lower bound on epsilon from canaries in one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from unskew.cli.options import POSITIONAL, Json
from unskew.errors import UsageError

if TYPE_CHECKING:
    from unskew.attacks.target_run import TargetRun

Samples = Annotated[int, Ge(1), Le(1_000_000)]
Seeds = Annotated[int, Ge(1), Le(100)]
OwnMethod = Annotated[
    str | None, "the method of a run of which a Part is in a Python file, with your own file"
]
OwnModel = Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"]
OwnLoss = Annotated[str | None, "FILE.py:FUNCTION of a run whose loss is in a Python file"]


@dataclass(frozen=True)
class Arguments:
    """The options of `unskew attack`."""

    run: Annotated[Path, "folder of a finished run"]
    attack: Annotated[str | None, POSITIONAL, "an attack by name; all that fit the run if left out"] = None
    set: Annotated[tuple[str, ...], "a setting of the attack, such as shadows=32 (repeatable)"] = ()
    samples: Annotated[Samples | None, "the most samples that are attacked; each attack has a default"] = None
    seeds: Annotated[Seeds, "how often the attack is made, each time with another seed"] = 1
    method: OwnMethod = None
    model: OwnModel = None
    loss: OwnLoss = None
    json: Json = False


def attack(arguments: Arguments) -> None:
    """Attack a finished run, and write the measurements into its privacy.json and its report.

    `unskew list attacks` lists all attacks; docs/privacy.md explains them.
    """
    from unskew.attacks.attack import perform
    from unskew.cli.screen import json_of
    from unskew.report import page

    settings = _settings(arguments)
    say = (lambda _: None) if arguments.json else print
    findings = perform(partial(_target, arguments), arguments.attack, settings, arguments.seeds, say)
    report = page.write_report([arguments.run], arguments.run / "report.html")
    print(json_of(findings) if arguments.json else f"report  {report}")


def audit(
    run: Annotated[Path, "folder of a finished run"],
    set: Annotated[tuple[str, ...], "a setting of the audit, such as unit=client (repeatable)"] = (),
    samples: Annotated[Samples | None, "the most canaries; 1000 if left out"] = None,
    seeds: Annotated[Seeds, "how often the run is trained anew, each time with other canaries"] = 1,
    method: OwnMethod = None,
    model: OwnModel = None,
    loss: OwnLoss = None,
    json: Json = False,
) -> None:
    """Train a finished run again with canaries, and measure which epsilon its model refutes.

    privacy.json and the report show this bound next to the epsilon that the run claims; docs/privacy.md
    explains it.
    """
    attack(Arguments(run, "audit", set, samples, seeds, method=method, model=model, loss=loss, json=json))


def _target(arguments: Arguments) -> TargetRun:
    from unskew.attacks.target_run import TargetRun
    from unskew.runs.reopen import UserCode

    return TargetRun(arguments.run, UserCode(arguments.method, arguments.model, arguments.loss))


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
