"""Methods by name: the files of this folder, robust aggregation rules, presets, installed packages, and users' own files.

A method is written `fedprox(mu=0.01)+fedrdn`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points

import unskew.merge as merge
import unskew.methods as folder
from unskew import arguments, calls
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UsageError, suggestion
from unskew.methods import own_parts

_NO_METHODS = {"registry", "own_parts"}


def parse(text: str, set_: Mapping[str, Mapping[str, object]] | None = None) -> Method:
    """The Method that a text names: `fedprox(mu=0.01)+fedrdn`, or a user's own Part as `file.py` or `file.py:Class`.

    set_: further arguments by Part, as `--set part.key=value` gives them.
    Raises UsageError (E102) for a text, name or argument that cannot be used, E111 and E121 for a user's file.
    """
    further = {name: dict(arguments) for name, arguments in (set_ or {}).items()}
    parts = []
    for call in calls.parse_sum(text, "method", "E102"):
        if call.file:
            kind = own_parts.kind(call.file, call.member)
            parts.append(part_of(kind, kind.written, call.arguments | further.pop(kind.name, {})))
            continue
        name = _normalised(call.name)
        values = call.arguments | further.pop(name, {})
        if name == "fedavg" and not values:
            continue
        kind, preset = _known(name)
        parts.append(part_of(kind, name, preset | values | further.pop(kind.name, {})))
    if further:
        raise UsageError("E102", f"--set names '{next(iter(further))}', which is not a part of '{text}'.")
    return Method(*parts)


def meant_for(text: str, set_: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The arguments of those Parts that this method has, by the Part's name or the name it is written with."""
    written = {_normalised(call.name) for call in calls.parse_sum(text, "method", "E102") if not call.file}
    names = written | {part.name for part in parse(text).parts}
    return {part: dict(arguments) for part, arguments in set_.items() if part in names}


def part_of(kind: type[Part], name: str, values: Mapping[str, object]) -> Part:
    """A Part of this class with these arguments. Raises UsageError (E102) for an argument that does not fit.

    name: what the user calls the Part.
    """
    converted = arguments.check(kind, values, f"method '{name}'", "E102")
    try:
        return kind(**converted)
    except ValueError as error:
        raise UsageError("E102", f"method '{name}': {str(error).rstrip('.')}.") from error


def _normalised(name: str) -> str:
    return name.lower().replace("-", "_")


def names() -> dict[str, str]:
    """Every method name and the first line that describes it: ours, and those of installed packages."""
    return {n: _summary(n) for n in ["fedavg", *sorted(_table())]}


@lru_cache
def _table() -> dict[str, str]:
    """name -> "module:Class"; ours by scanning the folder, so that a new method is one new file."""
    table = {}
    for module in pkgutil.iter_modules(folder.__path__):
        if module.name not in _NO_METHODS:
            table[module.name] = f"unskew.methods.{module.name}"
    for name, home in merge.RULES.items():
        table[name] = f"unskew.merge.{home}"
    for name, home in folder.PRESETS.items():
        table[name] = f"unskew.methods.{home[0]}"
    for entry in entry_points(group="unskew.methods"):
        table[entry.name] = entry.value
    return table


def _known(name: str) -> tuple[type[Part], dict[str, object]]:
    if name == "fedavg":
        raise UsageError("E102", "'fedavg' takes no arguments: it is the method without Parts.")
    table = _table()
    if name not in table:
        raise UsageError(
            "E102", f"unknown method '{name}'.{suggestion(name, ['fedavg', *table])} `unskew list methods` shows all."
        )
    home, preset = folder.PRESETS.get(name, (name, {}))
    module, _, attribute = table[name].partition(":")
    loaded = importlib.import_module(module)
    kind = getattr(loaded, attribute) if attribute else _part_in(loaded, home)
    if not (isinstance(kind, type) and issubclass(kind, Part)):
        raise UsageError("E102", f"'{table[name]}' is not a Part.")
    return kind, dict(preset)


def _part_in(module: object, name: str) -> type[Part]:
    return next(v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Part) and v.name == name)


def _summary(name: str) -> str:
    if name == "fedavg":
        return "FedAvg (McMahan et al., AISTATS 2017): the size-weighted mean of clients' weights"
    if name in folder.PRESETS:
        home, settings = folder.PRESETS[name]
        return f"short for {home}({', '.join(f'{k}={v}' for k, v in settings.items())})"
    module = importlib.import_module(_table()[name].partition(":")[0])
    return (module.__doc__ or "").strip().split("\n")[0].rstrip(".")
