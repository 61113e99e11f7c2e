"""Reading and checking the YAML files of experiments: those of papers by name, a user's file by path.

A check covers the settings of every run and the methods, without reading any data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from unskew.attacks.registry import attack_of
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.experiments.experiment import Claim, Experiment, Leak, TableRow, Trend
from unskew.formats import documents
from unskew.formats.specs import split_names
from unskew.methods.registry import arguments_of_method
from unskew.round.run import is_reference
from unskew.runs.resolve import check_spelling

T = TypeVar("T")


def parse_experiment(name: str, text: str, where: str = "") -> Experiment:
    """The experiment that a YAML text describes. where: the name of the file in messages.

    Raises UsageError (E126) with the place for a text that is not YAML, an unknown entry, a value of the
    wrong type, or an undefined method or row.
    """
    where = where or f"{name}.yaml"
    document = documents.load(text, where, "E126")
    for entry in ("methods", "rows"):
        if not (isinstance(document, dict) and isinstance(document.get(entry), dict) and document[entry]):
            raise _refused(
                f"{where} needs `{entry}:`, by name; a whole file: unskew explain docs/reproduce.md."
            )
    shared, methods = document.get("settings") or {}, document["methods"]
    if not isinstance(shared, dict):
        raise _refused(f"{where}: settings should hold keys and values, got {shared!r}.")
    if not isinstance(claims := document.get("claims") or [], list):
        raise _refused(f"{where}: claims should be a list, got {claims!r}.")
    for method in methods:
        if not isinstance(method, str):
            raise _refused(f"{where}: put the method's name {method!r} in quotes.")
    rows = [_row(f"{where}, row {n}", str(n), row or {}, shared) for n, row in document["rows"].items()]
    claims = [_claim(f"{where}, claim {i}", claim, methods) for i, claim in enumerate(claims, 1)]
    entries = {"title": name, **document, "rows": rows, "claims": claims}
    experiment = _build(Experiment, where, entries, name=name)
    _check_names(experiment, where)
    return experiment


def _refused(text: str) -> UsageError:
    return UsageError("E126", text)


def _check_names(experiment: Experiment, where: str) -> None:
    """Check that every method and row that the file mentions is defined, and that settings contain neither a
    method nor a seed."""
    mentioned = [method for row in experiment.rows for method in row.published]
    mentioned += [method for claim in experiment.claims for method in claim.methods]
    mentioned += [experiment.base] if experiment.base else []
    for method in [*mentioned, *experiment.overrides]:
        if method not in experiment.methods:
            near = suggestion(method, experiment.methods)
            raise _refused(f"{where} mentions '{method}', which is not among its methods.{near}")
    for claim in experiment.claims:
        for row in claim.rows:
            experiment.row(row)
    instead = {"method": "`methods:` names them", "seed": "--seeds on the command line chooses the seeds"}
    for settings in (*(row.settings for row in experiment.rows), *experiment.overrides.values()):
        for key in settings.keys() & instead.keys():
            raise _refused(f"{where}: leave '{key}' out of settings; {instead[key]}.")


def _row(where: str, name: str, entry: Any, shared: dict[str, Any]) -> TableRow:
    leak = entry.get("attack") if isinstance(entry, dict) else None
    if isinstance(entry, dict):
        entry = {"settings": {}, **{key: value for key, value in entry.items() if key != "attack"}}
    row = _build(TableRow, where, entry, name=name)
    attack = None if leak is None else _build(Leak, f"{where}, attack", leak)
    return dataclasses.replace(row, settings={**shared, **row.settings}, attack=attack)


def _claim(where: str, entry: Any, methods: Iterable[str]) -> Claim | Trend:
    """A Trend if the entry has `falls`, else a Claim.

    `than: all` means every other method, `than: all but X, Y` every other method except X and Y.
    """
    if isinstance(entry, dict) and "falls" in entry:
        return _build(Trend, where, entry)
    than = entry.get("than") if isinstance(entry, dict) else None
    if isinstance(than, str):
        every, _, but = than.partition(" but ")
        excluded = set(split_names(but))
        if every.strip() != "all" or not excluded <= set(methods):
            text = f"than should be a list of methods, all, or all but some, got '{than}'."
            raise _refused(f"{where}: {text}")
        entry = {**entry, "than": [m for m in methods if m != entry.get("better") and m not in excluded]}
    return _build(Claim, where, entry)


def _build(kind: type[T], where: str, entry: Any, **more: Any) -> T:
    """An object of the dataclass `kind` from the entries of a file and the values in `more`.

    Raises UsageError (E126) for an unknown entry, a missing one, or a value of the wrong type.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(entry, dict):
        raise _refused(f"{where} should hold keys and values, got {entry!r}.")
    known = {f.name for f in dataclasses.fields(kind)} - more.keys()  # type: ignore[arg-type]
    for key in entry:
        if key not in known:
            raise _refused(f"{where}: unknown entry '{key}'.{suggestion(str(key), known)}")
    try:
        return TypeAdapter(kind).validate_python({**entry, **more})
    except ValidationError as error:
        first = error.errors()[0]
        complaint = "is needed"
        if first["type"] != "missing":
            said = documents.validation_text(first["msg"].replace("Input should", "should"))
            complaint = f"{said}, got {first['input']!r}"
        raise _refused(f"{where}: {'.'.join(map(str, first['loc']))} {complaint}.") from None


def check_experiment(experiment: Experiment, where: str) -> None:
    """Check every combination of row and method. where: the name of the file in messages.

    Raises UsageError or DataError with the place for an unknown setting or method, a value out of range, or
    arguments of a Part that no method has.
    """
    for row in experiment.rows:
        place = f"{where}, row {row.name}"
        if row.attack:
            with _with_place(place):
                attack_of(row.attack.name, row.attack.settings)
        asked = row.settings.get("set") or {}
        used = set[str]()
        for method, text in experiment.methods.items():
            with _with_place(f"{place}, {method}"):
                check_spelling(experiment.settings_of(row, method))
            if not is_reference(text):
                own = experiment.overrides.get(method, {}).get("set") or {}
                _check_parts(own, arguments_of_method(text, own), f"{place}, {method}: set")
                used |= {*arguments_of_method(text, asked), *(p.name for p in experiment.parts(method))}
        _check_parts(asked, used, f"{place}: set")


def _check_parts(names: Iterable[str], known: Collection[str], where: str) -> None:
    for name in names:
        if name not in known:
            near = suggestion(name, known)
            raise _refused(f"{where} names '{name}', which is a Part of none of the methods.{near}")


@contextmanager
def _with_place(where: str) -> Iterator[None]:
    """Put the place in front of the message of any error."""
    try:
        yield
    except UnskewError as error:
        raise error.at(where) from None


PACKAGE = "unskew.experiments"


def experiment_names() -> list[str]:
    """The names of all experiments that come with unskew, in alphabetical order."""
    files = resources.files(PACKAGE).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def read_experiment(name: str) -> Experiment:
    """An experiment by name, or from a user's .yaml file, of which every run's settings are checked.

    Raises UsageError: E126 for an unknown name or an inconsistent file, E111 for a missing file, and the
    errors of its methods and settings.
    """
    if name.endswith((".yaml", ".yml")):
        experiment = parse_experiment(Path(name).stem, documents.text_of(Path(name)), name)
        check_experiment(experiment, name)
        return experiment
    names = experiment_names()
    if name not in names:
        hint = "`unskew list experiments` shows all of them; a file of your own ends in .yaml."
        raise UsageError("E126", f"unknown experiment '{name}'.{suggestion(name, names)} {hint}")
    return parse_experiment(name, (resources.files(PACKAGE) / f"{name}.yaml").read_text())
