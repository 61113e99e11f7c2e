"""Experiments' files: those of the papers by name, and a user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from unskew import documents
from unskew.comparison.cells import CENTRALISED, LOCAL
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.experiments.claims import Claim, Trend
from unskew.experiments.plan import Experiment, Row
from unskew.methods import registry
from unskew.methods.registry import meant_for

REFERENCES = (LOCAL, CENTRALISED)


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
        return checked(read(Path(name).stem, documents.text_of(Path(name)), name), name)
    if name not in names():
        known = "`unskew list experiments` shows all; a file of your own ends in .yaml."
        raise UsageError("E126", f"unknown experiment '{name}'.{suggestion(name, names())} {known}")
    return read(name, (resources.files(__package__) / f"{name}.yaml").read_text())


def checked(made: Experiment, where: str) -> Experiment:
    """The same. Raises UsageError for what can be told of its cells and grids without their data: of a setting or a method
    that there is none of, and of what is meant for a Part that none of its methods has."""
    for row in made.rows:
        used: set[str] = set()
        for method in made.methods:
            used |= _meant(made, f"{where}, row {row.name}, {method}", row, method)
        _meets(row.settings.get("set") or (), used | _parts(made), f"{where}, row {row.name}: set")
    for part, arguments in made.grids.items():
        _meets([part], _parts(made), f"{where}: grids")
        text = next(text for m, text in made.methods.items() if part in _parts(made, m))
        for argument, value in ((a, v) for a, values in arguments.items() for v in values):
            with _placed(f"{where}, grids"):
                registry.parse(text, {part: {argument: value}})
    return made


def _meant(made: Experiment, where: str, row: Row, method: str) -> set[str]:
    """The Parts for which this cell's row and method set something."""
    from unskew.engine.resolve import check_spelling

    with _placed(where):
        check_spelling(made.settings_of(row, method))
    text = made.methods[method]
    if text in REFERENCES:
        return set()
    own = made.overrides.get(method, {}).get("set") or {}
    _meets(own, meant_for(text, own), f"{where}: set")
    return set(meant_for(text, row.settings.get("set") or {}))


def _parts(made: Experiment, *methods: str) -> set[str]:
    """The Parts of these methods, or of all."""
    texts = [made.methods[m] for m in methods or made.methods]
    return {part.name for text in texts if text not in REFERENCES for part in registry.parse(text).parts}


def _meets(named: Iterable[str], parts: Collection[str], where: str) -> None:
    for part in named:
        if part not in parts:
            raise UsageError("E126", f"{where} names '{part}', a Part of none of the methods.{suggestion(part, parts)}")


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """What is refused inside is told with its place."""
    try:
        yield
    except UnskewError as error:
        raise type(error)(error.code, f"{where}: {error.text}") from None


def read(name: str, text: str, where: str = "") -> Experiment:
    """An experiment from its file's text. Raises UsageError (E126) where it does not hold together."""
    where = where or f"{name}.yaml"
    given = documents.load(text, where, "E126")
    for entry in ("methods", "rows"):
        if not (isinstance(given, dict) and isinstance(given.get(entry), dict) and given[entry]):
            raise UsageError("E126", f"{where} needs `{entry}:`, by name; docs/reproduce.md shows a whole file.")
    shared, methods, claims = given.get("settings") or {}, given["methods"], given.get("claims") or []
    for what, kind, wanted in (
        (shared, dict, "settings should hold keys and values"),
        (claims, list, "claims should be a list"),
    ):
        if not isinstance(what, kind):
            raise UsageError("E126", f"{where}: {wanted}, got {what!r}.")
    for method in methods:
        if not isinstance(method, str):
            raise UsageError("E126", f"{where}: write the method's name {method!r} in quotes.")
    rows = [_row(f"{where}, row {n}", str(n), r or {}, shared) for n, r in given["rows"].items()]
    told = [_claim(f"{where}, claim {i}", c, methods) for i, c in enumerate(claims, 1)]
    made = _fit(Experiment, where, {"title": name, **given, "rows": rows, "claims": told}, name=name)
    _fits_together(made, where)
    return made


def _fits_together(made: Experiment, where: str) -> None:
    """Methods and rows that it speaks of are its own, and what a command or `methods` says is not said again by settings."""
    speaks = [m for row in made.rows for m in row.published] + [m for c in made.claims for m in c.methods]
    for method in [*speaks, *made.overrides, *made.factors]:
        if method not in made.methods:
            near = suggestion(method, made.methods)
            raise UsageError("E126", f"{where} speaks of '{method}', which is not among its methods.{near}")
    for claim in made.claims:
        for row in claim.rows:
            made.row(row)
    for settings in (*(row.settings for row in made.rows), *made.overrides.values()):
        for key, instead in (("method", "`methods:` names them"), ("seed", "the command's --seeds says which")):
            if key in settings:
                raise UsageError("E126", f"{where}: leave '{key}' out of settings; {instead}.")


def _row(where: str, name: str, given: Any, shared: dict[str, Any]) -> Row:
    row = _fit(Row, where, {"settings": {}, **given} if isinstance(given, dict) else given, name=name)
    return dataclasses.replace(row, settings={**shared, **row.settings})


def _claim(where: str, given: Any, methods: Iterable[str]) -> Claim | Trend:
    """`than: all` stands for every other method, `than: all but X, Y` leaves some out; one that `falls` is a Trend."""
    if isinstance(given, dict) and "falls" in given:
        return _fit(Trend, where, given)
    than = given.get("than") if isinstance(given, dict) else None
    if isinstance(than, str):
        every, _, but = than.partition(" but ")
        left_out = {x.strip() for x in but.split(",") if x.strip()}
        if every.strip() != "all" or not left_out <= set(methods):
            raise UsageError("E126", f"{where}: than should be a list of methods, all, or all but some, got '{than}'.")
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
        wanted = documents.in_words(first["msg"].replace("Input should", "should")) + f", got {first['input']!r}"
        wanted = "is needed" if first["type"] == "missing" else wanted
        raise UsageError("E126", f"{where}: {at} {wanted}.") from None
