"""Methods by name: those of this package and their presets, of installed packages, and of users' files.

A method is written `fedprox(mu=0.01)+fedrdn`. A Part in a user's file is written `file.py`, or
`file.py:Class` if the file defines several.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UnknownMethod, UnskewError, UsageError, suggestion
from unskew.formats import arguments, calls
from unskew.methods import catalogue
from unskew.system import python_files


def user_part(file: str, name: str = "") -> type[Part]:
    """The class of this name in a file, or the file's only Part.

    Raises UsageError: E111 if the file cannot be imported, E121 if it does not define the Part.
    """
    parts = {k.__name__: k for k in user_parts(file)}
    if name and name not in parts:
        raise UsageError("E121", f"{file} defines no Part '{name}'.{suggestion(name, parts)}")
    if not name and len(parts) > 1:
        raise UsageError("E121", f"{file} defines {' and '.join(parts)}; write {file}:{next(iter(parts))}.")
    return parts[name] if name else next(iter(parts.values()))


def user_parts(file: str) -> tuple[type[Part], ...]:
    """All Parts that a file defines; the classes are cached until its text changes."""
    return _read_user_parts(file, python_files.digest(file) if Path(file).is_file() else "")


@lru_cache
def _read_user_parts(file: str, digest: str) -> tuple[type[Part], ...]:
    loaded = python_files.import_file(file)
    parts = [k for k in vars(loaded).values() if inspect.isclass(k) and issubclass(k, Part)]
    own_parts = tuple(k for k in parts if k.__module__ == loaded.__name__ and k.name)
    if not own_parts:
        raise UsageError(
            "E121", f"{file} defines no subclass of unskew.Part with a name, like name = 'mine'."
        )
    for k in own_parts:
        if not dataclasses.is_dataclass(k):
            raise UsageError("E121", f"{file}: write @dataclass(frozen=True) above class {k.__name__}.")
        k.spelling = f"{file}:{k.__name__}" if len(own_parts) > 1 else file
    return own_parts


LEAST_PIECE = 4
"""The least number of letters by which a part of a name is recognised, such as "krum" of multi_krum."""
FEDAVG = "FedAvg (McMahan et al., AISTATS 2017): the size-weighted mean of clients' weights"


def parse(text: str, set_: Mapping[str, Mapping[str, object]] | None = None) -> Method:
    """The Method for a text such as `fedprox(mu=0.01)+fedrdn`, `file.py` or `file.py:Class`.

    set_: further arguments by Part, as `--set part.key=value` sets them.

    Raises UsageError: E102 if the text, a name or an argument is invalid, E111 and E121 for a user's file.
    """
    further = {name: dict(arguments) for name, arguments in (set_ or {}).items()}
    parts = []
    for call in calls.parse_sum(text):
        if call.file:
            kind = user_part(call.file, call.member)
            parts.append(part_of(kind, kind.spelling, call.arguments | further.pop(kind.name, {})))
            continue
        name = _normalise(call.name)
        values = call.arguments | further.pop(name, {})
        if name == "fedavg" and not values:
            continue
        kind, preset = _class_and_settings(name)
        parts.append(part_of(kind, name, preset | values | further.pop(kind.name, {})))
    if further:
        raise UsageError("E102", f"--set names '{next(iter(further))}', which is not a part of '{text}'.")
    return Method(*parts)


def arguments_of_method(text: str, set_: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The arguments for Parts of this method, by the Part's name or the name in the text."""
    written = {_normalise(call.name) for call in calls.parse_sum(text) if not call.file}
    names = written | {part.name for part in parse(text).parts}
    return {part: dict(arguments) for part, arguments in set_.items() if part in names}


def named_arguments(text: str, set_: Mapping[str, Mapping[str, object]]) -> set[str]:
    """The names `part.argument` of all arguments set by the text, its presets or set_."""
    named = set[str]()
    for call in calls.parse_sum(text):
        if call.file:
            kind, preset, name = user_part(call.file, call.member), {}, ""
        elif (name := _normalise(call.name)) == "fedavg":
            continue
        else:
            kind, preset = _class_and_settings(name)
        settings = {**preset, **call.arguments, **set_.get(name, {}), **set_.get(kind.name, {})}
        named |= {f"{kind.name}.{argument}" for argument in settings}
    return named


def part_of(kind: type[Part], name: str, values: Mapping[str, object]) -> Part:
    """A Part of this class with these arguments.

    name: the user's name for the Part. Raises UsageError (E102) if an argument does not fit, E121 if the
    class fails.
    """
    converted = arguments.check(kind, values, f"method '{name}'", "E102")
    if missing := [
        a.name for a in arguments.of(kind) if a.default is arguments.REQUIRED and a.name not in converted
    ]:
        raise UsageError(
            "E102", f"method '{name}' needs {' and '.join(missing)}; write {name}({missing[0]}=...)."
        )
    try:
        return kind(**converted)
    except ValueError as error:
        raise UsageError("E102", f"method '{name}': {str(error).rstrip('.')}.") from error
    except UnskewError:
        raise
    except Exception as error:
        text = f"class {kind.__name__} cannot be made: {python_files.one_line(error)}"
        raise UsageError(
            "E121", f"{text}; write its settings as fields, mu: float = 0.1, and no __init__."
        ) from error


def _normalise(name: str) -> str:
    return name.lower().replace("-", "_")


def names() -> dict[str, str]:
    """All names of methods, each with a line of description: FedAvg, methods and presets of this package, and
    installed methods."""
    ours = {name: entry.summary for name, entry in catalogue.entries().items()}
    short = {
        name: f"short for {calls.call_text(entry.name, s)}"
        for name, (entry, s) in catalogue.presets().items()
    }
    from_packages = {name: _first_line(name, place) for name, place in installed().items()}
    return {"fedavg": FEDAVG, **dict(sorted((ours | short | from_packages).items()))}


@lru_cache
def installed() -> dict[str, str]:
    """The methods of installed packages by name: "module:Class" from their entry points."""
    return {entry.name: entry.value for entry in entry_points(group="unskew.methods")}


def _near_names(name: str, known: Sequence[str]) -> str:
    """A suggestion for an unknown name, as a sentence with a leading space; "" if no name is similar."""
    pieces = [piece.strip() for piece in re.split(r"[,;&/ ]", name)]
    if len(pieces) > 1 and all(piece in known for piece in pieces if piece):
        return f" Parts are joined by '+': {'+'.join(filter(None, pieces))}."
    matches = [one for one in known if len(name) >= LEAST_PIECE and name in one]
    return suggestion(name, known) or (f" Did you mean '{matches[0]}'?" if len(matches) == 1 else "")


def _class_and_settings(name: str) -> tuple[type[Part], dict[str, object]]:
    """The class of a method's Part, and the settings of the preset if the name is one."""
    if name == "fedavg":
        raise UsageError("E102", "'fedavg' takes no arguments: it is the method without Parts.")
    if place := installed().get(name):
        kind = getattr(_module(name, place), place.partition(":")[2], None)
        if not (isinstance(kind, type) and issubclass(kind, Part)):
            raise UsageError(
                "E102", f"the installed method '{name}' is '{place}', which is no Part; mend its package."
            )
        return kind, {}
    ours, presets = catalogue.entries(), catalogue.presets()
    if name not in ours and name not in presets:
        near = _near_names(name, ["fedavg", *ours, *presets, *installed()])
        if Path(f"{name}.py").is_file():
            near = f" There is a file {name}.py here: a method in a file is called '{name}.py'."
        raise UnknownMethod(name, f"unknown method '{name}'.{near} `unskew list methods` shows all.")
    entry, settings = (ours[name], {}) if name in ours else presets[name]
    return getattr(importlib.import_module(entry.module), entry.kind), dict(settings)


def _module(name: str, place: str) -> ModuleType:
    """The module of an installed package that provides this method. Raises UsageError (E111) if its import
    fails."""
    try:
        return importlib.import_module(place.partition(":")[0])
    except UnskewError:
        raise
    except Exception as error:
        text = f"the installed method '{name}' ({place}) cannot be imported: {python_files.one_line(error)}"
        raise UsageError("E111", f"{text}; mend its package, or install it again.") from error


def _first_line(name: str, place: str) -> str:
    try:
        module = _module(name, place)
    except UnskewError as error:  # one broken package must not hide the other methods
        return error.text.rstrip(".")
    return (module.__doc__ or "").strip().split("\n")[0].rstrip(".")
