"""The grammar of partitions, feature skews and availabilities: `kind:value,option=value,flag`.

    spec    kind [":" value] {"," option}
    option  name [("=" | ":") value]                          without a value: True
    value   a number or text; "-" separates the items of a list, "x" the values of several fields

A kind is a frozen dataclass; its annotated fields are its settings (see unskew.formats.arguments):

    name = "pathological"                                     the kind's name in texts
    value = ("classes", "samples")                            the fields after the colon
    example = "pathological:2x500"                            for messages and the documentation
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from unskew.errors import UsageError, excerpt, suggestion
from unskew.formats import arguments
from unskew.system import python_files


class Kind(Protocol):
    """The class attributes of a kind."""

    name: ClassVar[str]
    value: ClassVar[tuple[str, ...]]
    example: ClassVar[str]


K = TypeVar("K", bound=Kind)


@dataclass(frozen=True)
class Spec:
    """The parts of a text. value: None if no colon follows the kind."""

    kind: str
    value: str | None
    options: dict[str, object]


def parse(text: str, what: str, code: str) -> Spec:
    """The parts of a text. what: the setting's name for messages. Raises UsageError of this code for a
    repeated option."""
    head, *rest = [piece.strip() for piece in text.split(",")]
    kind, colon, value = head.partition(":")
    options: dict[str, object] = {}
    for piece in rest:
        match = re.fullmatch(r"([^=:]*)(?:[=:](.*))?", piece, re.S)
        name, content = (match[1].strip(), match[2]) if match else (piece, None)
        if name in options:
            raise UsageError(code, f"{what} {excerpt(text)} gives '{name}' twice.")
        options[name] = True if content is None else number_or_text(content)
    return Spec(kind.strip(), value.strip() if colon else None, options)


def read(spec: Spec, kinds: Mapping[str, type[K]], what: str, code: str) -> K:
    """The value that a spec describes. Raises UsageError of this code for an unknown kind, or unknown or
    unsuitable settings."""
    if spec.kind not in kinds:
        near, known = suggestion(spec.kind, kinds), ", ".join(kinds)
        before, equals, after = spec.kind.partition("=")
        if equals and before.strip() in kinds:
            near = f" Did you mean '{before.strip()}:{after.strip()}'?"
        raise UsageError(code, f"unknown {what} {excerpt(spec.kind)}.{near} Known: {known}.")
    kind = kinds[spec.kind]
    owner = f"{what} '{kind.name}'"
    try:
        settings = arguments.check(kind, _fields(kind, spec, owner, code) | spec.options, owner, code)
    except UsageError as error:
        raise UsageError(code, f"{error.text.rstrip()} Write it like {kind.example}.") from None
    required = [a.name for a in arguments.of(kind) if a.default is arguments.REQUIRED]
    if missing := [name for name in required if name not in settings]:
        raise UsageError(code, f"{owner} needs {' and '.join(missing)}, like {kind.example}.")
    return kind(**settings)


def number_or_text(text: str) -> object:
    """The text as an int or a float if it is a number; otherwise the text."""
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _fields(kind: type[K], spec: Spec, owner: str, code: str) -> dict[str, object]:
    """The fields that are set by the value after the colon."""
    if spec.value is None:
        return {}
    if not kind.value:
        raise UsageError(code, f"{owner} takes no value; got {excerpt(spec.value)}.")
    types = {argument.name: argument.type for argument in arguments.of(kind)}
    first = kind.value[0]
    if types[first] == "text":
        return {first: spec.value} if spec.value else {}
    if types[first].startswith("list"):
        return {first: [number_or_text(item) for item in spec.value.split("-")]}
    items = spec.value.split("x") if len(kind.value) > 1 else [spec.value]
    if len(items) > len(kind.value):
        raise UsageError(code, f"{owner} takes {' x '.join(kind.value)}; got {excerpt(spec.value)}.")
    return {name: number_or_text(item) for name, item in zip(kind.value, items)}


def split_names(text: str) -> tuple[str, ...]:
    """The names between commas, without spaces around them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def names_in(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """The comma-separated names in a text; () for "none". what: the setting's name for messages. Raises
    UsageError (E109) for an unknown name."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    if names in (("",), ("none",)):
        return ()
    if unknown := [name for name in names if name not in known]:
        near = suggestion(unknown[0], known)
        text = f"{what} names {excerpt(unknown[0])}, which is unknown.{near} Known: {', '.join(known)}"
        raise UsageError("E109", f"{text}.")
    return names


def without_folders(text: str) -> str:
    """A text in this grammar without the folders of its files: "trace:who.csv" for "trace:/home/me/who.csv".

    Texts that are sent to others should not reveal the folders of this machine.
    """
    for file in python_files.files_of(text):  # first, as folder names may contain signs of the grammar
        text = text.replace(file, Path(file).name)
    return re.sub(r"[^+(),=:'\"]*[/\\](?=[^+(),=:'\"])", "", text)
