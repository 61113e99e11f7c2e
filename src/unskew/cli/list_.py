"""`unskew list`: what there is to choose from."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from unskew.experiments.request import Request


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    data = "data"
    models = "models"
    errors = "errors"
    experiments = "experiments"
    attacks = "attacks"


def command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    times: Annotated[
        bool, typer.Option("--time", help="for experiments: also how long each would take here; takes a few minutes")
    ] = False,
) -> None:
    """List methods, data sets, models, published experiments, attacks or error codes."""
    from unskew.errors import UsageError

    if times and kind is not Kind.experiments:
        raise UsageError("E109", f"--time works for experiments only, not for {kind}.")
    entries = _ENTRIES[kind]()
    width = max(map(len, entries), default=0) + 2
    for name in entries:
        if times:
            entries[name] += f". {_time(name)}"
        if not as_json:
            print(f"{name:<{width}}{entries[name]}", flush=True)
    if as_json:
        print(json.dumps(entries))
    elif kind is Kind.experiments and not times:
        print("\nHow long they take: `unskew list experiments --time`, or `unskew reproduce NAME --dry-run` for one.")


def _methods() -> dict[str, str]:
    from unskew.methods.registry import names

    return names()


def _data() -> dict[str, str]:
    from unskew import data

    return data.describe()


def _models() -> dict[str, str]:
    from unskew import models

    return models.describe()


def _errors() -> dict[str, str]:
    from unskew.errors import PAGES

    return dict(PAGES)


def _attacks() -> dict[str, str]:
    from unskew.attacks import catalogue

    return catalogue.names()


def _experiments() -> dict[str, str]:
    """The title, and how many rows have their data on this machine."""
    from unskew.experiments.files import experiment_names, read_experiment
    from unskew.report.numbers import plural

    entries = {}
    for name in experiment_names():
        experiment = read_experiment(name)
        here = sum(row.has_data for row in experiment.rows)
        rows = f"{here} of {plural(len(experiment.rows), 'row')} can run here"
        entries[name] = f"{experiment.title}; {rows}, {plural(len(experiment.methods), 'method')}"
    return entries


def _time(name: str) -> str:
    """How long all rows with data on this machine would take, as `reproduce` would run them."""
    from unskew.engine import hardware
    from unskew.experiments.estimate import seconds_for
    from unskew.experiments.files import read_experiment
    from unskew.report.numbers import clock

    experiment = read_experiment(name)
    cores = hardware.cores()
    rows = [row for row in experiment.rows if row.has_data]
    settings = [experiment.settings_of(row, method) for row in rows for method in experiment.methods]
    runs = {each.fingerprint(): each for each in settings}
    if not runs:
        return "No data here."
    seconds = seconds_for(runs.values(), cores, Request.seeds)
    return f"About {clock(seconds)} for {Request.seeds} seeds on {cores} cores."


_ENTRIES = {
    Kind.methods: _methods,
    Kind.data: _data,
    Kind.models: _models,
    Kind.errors: _errors,
    Kind.experiments: _experiments,
    Kind.attacks: _attacks,
}
