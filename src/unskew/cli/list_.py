"""`unskew list`: what there is to choose from."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from unskew.cli.reproduce import SEEDS


class Kind(StrEnum):
    methods = "methods"
    data = "data"
    models = "models"
    errors = "errors"
    experiments = "experiments"


def command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    times: Annotated[
        bool, typer.Option("--time", help="of experiments: also how long each would take here; takes a few minutes")
    ] = False,
) -> None:
    """List methods, data sets, models, published experiments or error codes."""
    from unskew.errors import UsageError

    if times and kind is not Kind.experiments:
        raise UsageError("E109", f"--time is told of experiments only, not of {kind}.")
    found = _FOUND[kind]()
    width = max(map(len, found), default=0) + 2
    told = {}
    for name, text in found.items():
        told[name] = f"{text}. {_time(name)}" if times else text
        if not as_json:
            print(f"{name:<{width}}{told[name]}", flush=True)
    if as_json:
        print(json.dumps(told))
    elif kind is Kind.experiments and not times:
        print("\nHow long: unskew list experiments --time, or unskew reproduce NAME --dry-run for one of them.")


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

    return PAGES


def _experiments() -> dict[str, str]:
    """Title, and how many of the rows can run with the data at hand."""
    from unskew.experiments import files

    found = {}
    for name in files.names():
        made = files.load(name)
        there = sum(r.at_hand for r in made.rows)
        rows = f"{there} of {len(made.rows)} row{'s' * (len(made.rows) > 1)} can run here"
        methods = f"{len(made.methods)} method{'s' * (len(made.methods) > 1)}"
        found[name] = f"{made.title}; {rows}, {methods}"
    return found


def _time(name: str) -> str:
    """How long all rows whose data are at hand would take, as `reproduce` would run them."""
    from unskew.cli.screen import clock
    from unskew.engine import resolve
    from unskew.experiments import estimate, files

    made = files.load(name)
    cores = resolve.cores()
    runs = {s.fingerprint(): s for r in made.rows if r.at_hand for m in made.methods for s in [made.settings_of(r, m)]}
    if not runs:
        return "No data here."
    return f"About {clock(estimate.together(runs.values(), cores, SEEDS))} for {SEEDS} seeds on {cores} cores."


_FOUND = {
    Kind.methods: _methods,
    Kind.data: _data,
    Kind.models: _models,
    Kind.errors: _errors,
    Kind.experiments: _experiments,
}
