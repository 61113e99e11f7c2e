"""Experiments' files: those of the papers by name, and a user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from unskew.errors import UsageError, suggestion
from unskew.experiments.claims import Claim, Trend
from unskew.experiments.plan import Experiment, Row


def names() -> list[str]:
    """Every experiment there is."""
    return sorted(
        f.name.removesuffix(".yaml") for f in resources.files(__package__).iterdir() if f.name.endswith(".yaml")
    )


def load(name: str) -> Experiment:
    """An experiment by name, or from a YAML file of a user's own, all of whose cells are looked at.

    Raises UsageError: E126 for a name that there is none of and a file that does not hold together, E111 for one that is
    not there, and what a method or a setting of its cells is refused for.
    """
    if name.endswith((".yaml", ".yml")):
        return _checked(read(Path(name).stem, _text(Path(name)), name), name)
    if name not in names():
        known = "`unskew list experiments` shows all; a file of your own ends in .yaml."
        raise UsageError("E126", f"unknown experiment '{name}'.{suggestion(name, names())} {known}")
    return read(name, (resources.files(__package__) / f"{name}.yaml").read_text())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = "there is no file" if isinstance(error, FileNotFoundError) else "cannot read"
        raise UsageError("E111", f"{why} {path}.") from None


def _checked(made: Experiment, where: str) -> Experiment:
    for row in made.rows:
        for method in made.methods:
            try:
                made.settings_of(row, method)
            except UsageError as error:
                raise UsageError(error.code, f"{where}, row {row.name}, {method}: {error.text}") from None
    return made


def read(name: str, text: str, where: str = "") -> Experiment:
    """An experiment from its file's text. Raises UsageError (E126) where it does not hold together."""
    where = where or f"{name}.yaml"
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError("E126", f"{where} is not YAML: {' '.join(str(error).split())}.") from None
    for entry in ("methods", "rows"):
        if not (isinstance(given, dict) and isinstance(given.get(entry), dict) and given[entry]):
            raise UsageError("E126", f"{where} needs `{entry}:`, by name; docs/reproduce.md shows a whole file.")
    shared, methods = given.get("settings") or {}, given["methods"]
    rows = [_row(f"{where}, row {n}", str(n), r or {}, shared) for n, r in given["rows"].items()]
    claims = [_claim(f"{where}, claim {i}", c, methods) for i, c in enumerate(given.get("claims") or (), 1)]
    made = _fit(Experiment, where, {"title": name, **given, "rows": rows, "claims": claims}, name=name)
    for row in made.rows:
        for method in row.published:
            _known(made, method, where)
    for claim in made.claims:
        for method in claim.methods:
            _known(made, method, where)
        for row in claim.rows:
            made.row(row)
    return made


def _row(where: str, name: str, given: Any, shared: dict[str, Any]) -> Row:
    row = _fit(Row, where, {"settings": {}, **given} if isinstance(given, dict) else given, name=name)
    return dataclasses.replace(row, settings={**shared, **row.settings})


def _claim(where: str, given: Any, methods: Iterable[str]) -> Claim | Trend:
    """`than: all` stands for every other method, `than: all but X, Y` leaves some out; one that `falls` is a Trend."""
    if isinstance(given, dict) and "falls" in given:
        return _fit(Trend, where, given)
    than = given.get("than") if isinstance(given, dict) else None
    if isinstance(than, str):
        left_out = {x.strip() for x in than.removeprefix("all").removeprefix(" but").split(",")}
        given = {**given, "than": [m for m in methods if m != given.get("better") and m not in left_out]}
    return _fit(Claim, where, given)


T = TypeVar("T")


def _fit(kind: type[T], where: str, given: Any, **more: Any) -> T:
    """An object of this class from what a file says of it. Raises UsageError (E126), which says what does not fit."""
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(given, dict):
        raise UsageError("E126", f"{where} should hold keys and values, got {given!r}.")
    known = {f.name for f in dataclasses.fields(kind)} - more.keys()  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise UsageError("E126", f"{where}: unknown entry '{key}'.{suggestion(str(key), known)}")
    try:
        return TypeAdapter(kind).validate_python({**given, **more})
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        wanted = first["msg"].replace("Input should", "should") + f", got {first['input']!r}"
        wanted = "is needed" if first["type"] == "missing" else wanted
        raise UsageError("E126", f"{where}: {at} {wanted}.") from None


def _known(made: Experiment, method: str, where: str) -> None:
    if method not in made.methods:
        raise UsageError("E126", f"{where} speaks of '{method}', which is not among its methods.")
