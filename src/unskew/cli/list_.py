"""`unskew list`: what there is to choose from."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    methods = "methods"
    data = "data"
    models = "models"
    errors = "errors"
    experiments = "experiments"


def command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """List methods, data sets, models, published experiments or error codes."""
    found = _FOUND[kind]()
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found), default=0) + 2
    for name, text in found.items():
        print(f"{name:<{width}}{text}")


def _methods() -> dict[str, str]:
    from unskew.core.method import names

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
    """Title, how many of the rows can run with the data at hand, and what it takes."""
    from unskew.experiments import plan

    found = {}
    for name in plan.names():
        made = plan.load(name)
        there = sum(r.at_hand for r in made.rows)
        rows = f"{there} of {len(made.rows)} row{'s' * (len(made.rows) > 1)} can run here"
        methods = f"{len(made.methods)} method{'s' * (len(made.methods) > 1)}"
        found[name] = f"{made.title}; {rows}, {methods}. Time: unskew reproduce {name} --dry-run"
    return found


_FOUND = {
    Kind.methods: _methods,
    Kind.data: _data,
    Kind.models: _models,
    Kind.errors: _errors,
    Kind.experiments: _experiments,
}
