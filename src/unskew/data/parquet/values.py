"""What columns of Parquet hold, and their values as arrays of NumPy.

A column is known by how Arrow writes its type:

    number   int64, float, bool ...                    text    string, also as a dictionary
    list     numbers in lists of one shape, nested      packed  struct<bytes: binary, ...>, a file in each row
    value    dates, decimals and the like               other   anything else, which is left out

Letters: N rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

NUMBERS = frozenset(
    ("bool", "halffloat", "float", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)
TEXTS = frozenset(("string", "large_string", "string_view"))
LIST = re.compile(r"(?:large_)?list<[^:]+: (?P<inner>.*)>|fixed_size_list<[^:]+: (?P<fixed>.*)>\[\d+\]")
PACKED = re.compile(r"struct<(?:.*, )?bytes: (large_)?binary\b.*>")
VALUES = re.compile(r"date|time|timestamp|decimal|null|duration|month")


@dataclass(frozen=True)
class Column:
    """kind: number, text, list, packed, value or other, see above. form: how Arrow writes its type."""

    name: str
    kind: str
    form: str


def column_of(field: Any) -> Column:
    """What a field of a schema holds. A type of an extension counts as what it is stored as."""
    form = str(getattr(field.type, "storage_type", field.type))
    return Column(field.name, _kind(form), form)


def _kind(form: str) -> str:
    if form in NUMBERS:
        return "number"
    if form in TEXTS or form.startswith("dictionary<values=string,"):
        return "text"
    if PACKED.fullmatch(form):
        return "packed"
    inner = form
    while match := LIST.fullmatch(inner):
        inner = (match["inner"] or match["fixed"]).removesuffix(" not null")
    if inner != form:
        return "list" if inner in NUMBERS else "other"
    return "value" if VALUES.match(form) else "other"


def values_of(array: Any) -> np.ndarray:
    """A column's values, [N]: numbers in their own type; words, and whatever has missing values, as objects."""
    form = str(array.type)
    if form.startswith("dictionary<"):
        return _spelled_out(array)
    if form in NUMBERS and not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    return _objects(array.to_pylist())


def widened(values: np.ndarray) -> np.ndarray:
    """Numbers as Python has them: whole ones as int64 where these can hold them, others as float64."""
    if values.dtype.kind == "f":
        return values.astype(np.float64, copy=False)
    if values.dtype.kind == "i" or (values.dtype.kind == "u" and (not len(values) or int(values.max()) < 1 << 63)):
        return values.astype(np.int64, copy=False)
    return values


def lists_of(array: Any) -> np.ndarray | None:
    """Lists as one array [N, ...]; None where lists differ in length, or where a list or a number in one is missing."""
    shape: list[int] = [len(array)]
    while LIST.fullmatch(str(array.type)):
        if array.null_count:
            return None
        inner = array.flatten()
        lengths = array.value_lengths().to_numpy(zero_copy_only=False) if hasattr(array, "value_lengths") else None
        size = len(inner) // len(array) if len(array) else 0
        if len(inner) != size * len(array) or (lengths is not None and (lengths != size).any()):
            return None
        shape.append(size)
        array = inner
    if array.null_count:
        return None
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def packed_of(array: Any) -> np.ndarray:
    """The content of each row's file, objects [N]: bytes, or None where a row holds none of its own."""
    return _objects(array.field("bytes").to_pylist())


def _objects(listed: list[Any]) -> np.ndarray:
    values = np.empty(len(listed), object)
    values[:] = listed
    return values


def _spelled_out(array: Any) -> np.ndarray:
    """The values of an array of numbers into a dictionary; equal values share one object."""
    words = _objects([*array.dictionary.to_pylist(), None])
    places = array.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
    return words[places]
