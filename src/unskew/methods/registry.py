"""Methods by name: the files of this folder, robust aggregation rules, presets, installed packages, and users' own files.

A method is written `fedprox(mu=0.01)+fedrdn`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points

import unskew.merge as merge
import unskew.methods as folder
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UsageError, suggestion
from unskew.methods import own_parts

_PIECE = re.compile(
    r"^\s*(?:(?P<file>[^()]*\.py)(?::(?P<kind>\w+))?|(?P<name>[A-Za-z_][\w-]*))\s*(?:\((?P<arguments>.*)\))?\s*$", re.S
)
_NO_METHODS = {"registry", "own_parts"}


def parse(text: str, set_: dict[str, dict[str, object]] | None = None) -> Method:
    """`fedprox(mu=0.01)+fedrdn`, a Part also as `file.py` or `file.py:Class` of a user's own.

    `set_` holds further arguments by part, as `--set part.key=value` gives them.
    """
    extra = {k: dict(v) for k, v in (set_ or {}).items()}
    parts = []
    for piece in _split(text):
        match = _PIECE.match(piece)
        if not match:
            raise UsageError("E102", f"cannot read '{piece}' in method '{text}'; write name(key=value)+name.")
        arguments = _arguments(match["arguments"] or "", piece)
        if match["file"]:
            kind = own_parts.kind(match["file"], match["kind"] or "")
            parts.append(part_of(kind, kind.written, arguments | extra.pop(kind.name, {})))
            continue
        name = match["name"].lower().replace("-", "_")
        arguments |= extra.pop(name, {})
        if name == "fedavg" and not arguments:
            continue
        kind, preset = _known(name)
        parts.append(part_of(kind, name, arguments | extra.pop(kind.name, {}), preset))
    if extra:
        raise UsageError("E102", f"--set names '{next(iter(extra))}', which is not a part of '{text}'.")
    return Method(*parts)


def meant_for(text: str, set_: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """Those arguments whose part is in this method, by its name or by the one that the method is written with."""
    written = {
        match["name"].lower().replace("-", "_") for p in _split(text) if (match := _PIECE.match(p)) and match["name"]
    }
    names = written | {part.name for part in parse(text).parts}
    return {part: dict(given) for part, given in set_.items() if part in names}


def part_of(
    kind: type[Part], name: str, arguments: dict[str, object], preset: Mapping[str, object] | None = None
) -> Part:
    """A Part of this class, its arguments checked against the fields; preset: what a name stands for without saying so.

    Raises UsageError (E102).
    """
    known = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    for argument in arguments:
        if argument not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(
                "E102", f"'{name}' has no argument '{argument}'; it has: {listed}.{suggestion(argument, known)}"
            )
    values = {**(preset or {}), **arguments}
    for argument, value in values.items():
        default = known[argument].default
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            values[argument] = float(value)
        elif default is not dataclasses.MISSING and default is not None and type(values[argument]) is not type(default):
            wanted = type(default).__name__
            raise UsageError("E102", f"'{name}': {argument} must be of type {wanted}, got {value!r}.")
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError("E102", f"'{name}': {error}.") from error


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


def _split(text: str) -> list[str]:
    """At `+` outside brackets."""
    pieces, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    return [p for p in [*pieces, text[start:]] if p.strip()] or ["fedavg"]


def _arguments(text: str, piece: str) -> dict[str, object]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {str(k.arg): _value(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            "E102", f"cannot read the arguments of '{piece}'; write key=value, separated by commas."
        ) from error


def _value(node: ast.expr) -> object:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
