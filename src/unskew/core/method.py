"""A Method is an ordered set of Parts, written `fedprox(mu=0.01)+fedrdn` or built from objects."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Literal

from unskew.core import own_parts
from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, Share
from unskew.errors import UsageError, suggestion

_PIECE = re.compile(
    r"^\s*(?:(?P<file>[^()]*\.py)(?::(?P<kind>\w+))?|(?P<name>[A-Za-z_][\w-]*))\s*(?:\((?P<arguments>.*)\))?\s*$", re.S
)


class Method:
    """An ordered set of Parts. `Method()` is FedAvg.

    Order matters for the hooks `batch`, `tap` and `logits`; `loss` and `grad` add up.
    Raises UsageError (E107) for two Parts of one name, two merges, or Parts that make no sense together.
    """

    def __init__(self, *parts: Part):
        self.parts = tuple(parts)
        names = [p.name for p in parts]
        for p in parts:
            if not isinstance(p, Part):
                raise UsageError("E107", f"a Method is made of Parts, not of {p!r}.")
            hidden = [h for h in HOOKS if not callable(getattr(p, h))]
            if hidden:
                raise UsageError("E107", f"'{p.name}' has a setting '{hidden[0]}' that hides the hook of that name.")
            if names.count(p.name) > 1:
                raise UsageError("E107", f"'{p.name}' stands twice in {self}; each Part can be there once.")
            for other in set(names) & set(p.clashes):
                raise UsageError("E107", f"'{p.name}' and '{other}' cannot be combined: {p.clashes[other]}.")
        merging = [p.name for p in parts if p.merges]
        if len(merging) > 1:
            raise UsageError("E107", f"{' and '.join(merging)} each replace the merge of weights; keep one.")
        weighing = {p.weighting for p in parts} - {None}
        if len(weighing) > 1:
            raise UsageError(
                "E107", f"the Parts of {self} weigh clients differently ({', '.join(sorted(map(str, weighing)))})."
            )
        self.weighting = next(iter(weighing), None) or "size"

    @property
    def merger(self) -> Part | None:
        return next((p for p in self.parts if p.merges), None)

    @property
    def weights_read(self) -> Literal["sum", "each"]:
        """How the server must see clients' weights."""
        return "each" if any(p.weights_read == "each" for p in self.parts) else "sum"

    @property
    def normalises(self) -> bool:
        return any(p.normalises for p in self.parts)

    def check_task(self, name: str) -> None:
        """Raises UsageError (E108) for a Part that does not serve this task."""
        for p in self.parts:
            if name not in p.tasks:
                raise UsageError(
                    "E108", f"'{p.name}' cannot run here: it is for {' and '.join(p.tasks)}, not for {name}."
                )

    def check(self, fed: Fed) -> None:
        """Refuse, in one sentence and before anything runs, what cannot work with this model or these data."""
        self.check_task(fed.task.name)
        for p in self.parts:
            if not fed.shared and (p.merges or p.weighting):
                raise UsageError("E108", f"'{p.name}' cannot run here: clients keep every weight, so none are merged.")
            for cut in p.taps:
                fed.net.cuts(cut)
            if reason := p.refuse(fed):
                raise UsageError("E108", f"'{p.name}' cannot run here: {reason}.")

    def shares(self, fed: Fed) -> dict[str, dict[str, Share]]:
        return {p.name: p.shares(fed) for p in self.parts}

    def keeps(self, name: str, fed: Fed) -> bool:
        return any(p.keeps(name, fed) for p in self.parts)

    def freezes(self, name: str, fed: Fed) -> bool:
        return any(p.freezes(name, fed) for p in self.parts)

    def __str__(self) -> str:
        return "+".join(map(str, self.parts)) or "fedavg"

    def __repr__(self) -> str:
        return f"Method({', '.join(map(repr, self.parts))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    @staticmethod
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
    names = written | {part.name for part in Method.parse(text).parts}
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
    import unskew.merge as merge
    import unskew.methods as folder

    table = {}
    for module in pkgutil.iter_modules(folder.__path__):
        table[module.name] = f"unskew.methods.{module.name}"
    for name, home in merge.RULES.items():
        table[name] = f"unskew.merge.{home}"
    for name, home in folder.PRESETS.items():
        table[name] = f"unskew.methods.{home[0]}"
    for entry in entry_points(group="unskew.methods"):
        table[entry.name] = entry.value
    return table


def _known(name: str) -> tuple[type[Part], dict[str, object]]:
    import unskew.methods as folder

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
    from unskew.methods import PRESETS

    if name == "fedavg":
        return "FedAvg (McMahan et al., AISTATS 2017): the size-weighted mean of clients' weights"
    if name in PRESETS:
        home, settings = PRESETS[name]
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
