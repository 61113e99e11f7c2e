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


def command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """List methods, data sets, models or error codes."""
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


_FOUND = {Kind.methods: _methods, Kind.data: _data, Kind.models: _models, Kind.errors: _errors}
