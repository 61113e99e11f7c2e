"""Samples with several inputs, each sample packed into one row of numbers.

A dictionary of inputs stands for keyword arguments of the model's forward, a tuple for positional ones. What stores, sends
or compares samples sees rows [N, D] of float32; only what calls the model takes them apart (unskew.models.unpacking).
Letters: N samples, D numbers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.data.beside import Beside, put_together
from unskew.data.convert import DEPTHS, LARGE, samples
from unskew.data.intake.layout import check_layout
from unskew.data.intake.notes import Note
from unskew.data.intake.room import fits, told
from unskew.data.layout import KINDS, MOST_AXES, MOST_INPUTS, MOST_NUMBERS, Input, Layout, is_misnamed
from unskew.data.rows import Rows, standing_in, streams, surveyed
from unskew.data.stored import stored
from unskew.errors import DataError, excerpt

LARGEST = 1 << 24
"""The largest whole number up to which float32 holds all of them."""


@dataclass(frozen=True)
class Packed:
    """x: float32 [N, D], rows that lie as the layout says. notes: what was done to them."""

    x: np.ndarray
    layout: Layout
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def are_inputs(x: Any, y: Any) -> bool:
    """Whether x holds several inputs for the labels y: a dictionary, or a tuple of arrays each with a row for every label.

    A tuple of as many arrays as there are labels is a tuple of samples, unless each of them has a row for every label.
    """
    if isinstance(x, Packed | Mapping):
        return True
    if not (isinstance(x, tuple) and x and all(hasattr(part, "shape") and len(part.shape) for part in x)):
        return False
    count = len(y) if hasattr(y, "__len__") else 0
    return len(x) != count or all(len(part) == count for part in x)


def packed(x: Any, name: str, as_is: bool = False) -> Packed:
    """Samples of several inputs, given as a dictionary or tuple of arrays [N, ...], as rows whose layout follows from them.

    as_is: also inputs whose shapes look like images with channels last or missing.
    Raises DataError: E403 for what is no such thing, E405 as `rows_of` does.
    """
    if isinstance(x, Packed):
        return x
    given = _arrays(x, name)
    if not given:
        raise DataError("E403", f"{name}: an empty dictionary of inputs was given; name one array or several.")
    for key, values in given.items():
        if not as_is and values.ndim > 1:
            check_layout(f"{name}: {_called(key)}", values)
    layout = Layout(tuple(_input(n, values, name) for n, values in given.items()), isinstance(x, Mapping))
    if layout.width > MOST_NUMBERS or len(given) > MOST_INPUTS:
        text = f"{len(given)} inputs of {layout.width:,} numbers together; at most {MOST_INPUTS} of {MOST_NUMBERS:,} are read"
        raise DataError("E403", f"{name}: a sample has {text}.")
    notes: list[Note] = [
        ("scaled", f"{_called(each.name)}: whole numbers of an image were divided by {each.divided_by:,}")
        for each in layout.inputs
        if each.divided_by > 1
    ]
    rows = rows_of(layout, given if layout.named else tuple(given.values()), name)
    if streams(rows):
        notes.append(told(len(rows), (layout.width,)))
    return Packed(rows, layout, tuple(notes))


def rows_of(layout: Layout, x: Any, name: str) -> np.ndarray:
    """Samples with these inputs, given as a dictionary or tuple of arrays [N, ...], as rows, float32 [N, D], or what stands in
    for them where they are too many for memory.

    name: of what they are, for messages. Raises DataError: E403 for missing and further inputs, other shapes and types,
    E405 for NaN, infinity, and whole numbers that float32 cannot hold.
    """
    given = _arrays(x, name)
    _check_names(layout, given, isinstance(x, Mapping), name)
    for each in layout.inputs:
        _check_fits(each, given[each.name], name)
    count = _count(given, name)
    if not fits(count, (layout.width,)):
        return _standing_in(layout, given, name)
    whole = {key: values[np.arange(count)] if streams(values) else values for key, values in given.items()}
    for each in layout.inputs:
        _check_exact(whole[each.name].reshape(count, each.size), each, name)
    rows = put_together(layout, whole, count)
    for each, start, end in layout.places:
        _check_finite(rows[:, start:end], each, name)
    return rows


def _standing_in(layout: Layout, given: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """What stands in for rows that memory does not hold; all of them are looked at here."""
    source = Beside(name, layout, given)

    def looked_at(rows: np.ndarray) -> np.ndarray:
        x = source.read(rows)
        for each, start, end in layout.places:
            _check_exact(x[:, start:end], each, name, int(rows[0]))
            _check_finite(x[:, start:end], each, name, int(rows[0]))
        return x

    source.__dict__["survey"] = surveyed(source.shape, looked_at)
    return standing_in(source)


def difference(one: Layout, other: Layout) -> str:
    """Why samples of these layouts cannot go together, as the end of a sentence."""
    pair = next(((a, b) for a, b in zip(one.inputs, other.inputs) if a != b), None)
    if one.named != other.named or len(one.inputs) != len(other.inputs) or pair is None or pair[0].name != pair[1].name:
        return f"{one} and {other}"
    return f"{pair[0]} and {pair[1]}"


def _check_names(layout: Layout, given: Mapping[str, Any], named: bool, name: str) -> None:
    known = [each.name for each in layout.inputs]
    if named != layout.named:
        form = f"a dictionary of {', '.join(known)}" if layout.named else f"a tuple of {len(known)}"
        raise DataError("E403", f"{name}: samples have several inputs; give {form}, each an array [N, ...].")
    if missing := [n for n in known if n not in given]:
        raise DataError("E403", f"{name}: {_called(missing[0])} is missing; samples have {layout}.")
    if further := [n for n in given if n not in known]:
        raise DataError("E403", f"{name}: there is no {_called(further[0])}; samples have {layout}.")


def _arrays(x: Any, name: str) -> dict[str, np.ndarray]:
    """The arrays as they were given, by name or place; names in alphabetical order, so that no other order matters."""
    if isinstance(x, Mapping):
        for key in x:
            if not isinstance(key, str) or is_misnamed(key):
                text = f"the input {excerpt(key)} has a name that is no keyword of a function"
                raise DataError("E403", f"{name}: {text}; write letters, digits and underscores, such as 'age_years'.")
        named = {key: x[key] for key in sorted(x)}
    elif isinstance(x, tuple | list):
        named = {str(i + 1): values for i, values in enumerate(x)}
    else:
        raise DataError(
            "E403", f"{name}: samples have several inputs; give a dictionary or a tuple of arrays [N, ...]."
        )
    return {key: _numbers(values, f"{name}: {_called(key)}") for key, values in named.items()}


def _numbers(values: Any, label: str) -> np.ndarray:
    """An input as it was given; of a large mapped file its rows are read when they are wanted."""
    array = samples(values, label)
    if not isinstance(array, np.memmap) or array.nbytes <= LARGE:
        return array
    if source := stored(array, None):
        return standing_in(source)
    text = f"{array.nbytes:,} bytes are mapped so that changes stay in memory (mode 'c')"
    raise DataError("E403", f"{label}: {text}; map the file with mode 'r'.")


def _input(key: str, values: np.ndarray, name: str) -> Input:
    """What an input [N, ...] is: images of unsigned whole numbers are divided by the largest, other whole numbers stay."""
    shape = tuple(values.shape[1:])
    if not math.prod(shape) or len(shape) > MOST_AXES:
        raise DataError("E403", f"{name}: {_called(key)} is {list(shape)} in a sample; give it at least one number.")
    came = values.source.came if isinstance(values, Rows) else values.dtype
    bits = DEPTHS.get(came) if len(shape) > 1 else None
    return Input(key, shape, "float32" if bits else KINDS[came.kind], (1 << bits) - 1 if bits else 1)


def _check_fits(each: Input, values: np.ndarray, name: str) -> None:
    """Raises DataError (E403) for another shape, and for numbers of which the model would see something else."""
    came = _input(each.name, values, name)
    if came.shape != each.shape:
        raise DataError(
            "E403", f"{name}: {_called(each.name)} is {list(came.shape)} in a sample, and {each} is needed."
        )
    if came.divided_by != each.divided_by or (each.kind != "float32" and came.kind != each.kind):
        raise DataError("E403", f"{name}: {_called(each.name)} is {values.dtype}, and {each} is needed.")


def _check_exact(flat: np.ndarray, each: Input, name: str, begin: int = 0) -> None:
    """Raises DataError (E405) for whole numbers [N, numbers] that float32 would round, or, where they are float32 already, that
    it may have rounded. begin: the number of the first sample."""
    largest = LARGEST if flat.dtype.kind in "iu" else LARGEST - 1
    if each.kind == "int64" and flat.size and max(int(flat.max()), -int(flat.min())) > largest:
        row, place = np.argwhere(np.abs(flat.astype(np.float64)) > largest)[0].tolist()
        held = int(flat[row, place])
        text = (
            f"{_called(each.name)} of sample {begin + row} holds {held}, and whole numbers are kept up to {largest:,}"
        )
        raise DataError("E405", f"{name}: {text}; number what it stands for anew, or give it as floats.")


def _check_finite(flat: np.ndarray, each: Input, name: str, begin: int = 0) -> None:
    if each.kind == "float32" and not np.isfinite(flat.sum(dtype=np.float64)):
        wrong = np.argwhere(~np.isfinite(flat))
        if len(wrong):
            row, place = wrong[0].tolist()
            text = f"{_called(each.name)} of sample {begin + row} holds {flat[row, place]}"
            raise DataError("E405", f"{name}: {text}; correct or remove it.")


def _count(given: Mapping[str, np.ndarray], name: str) -> int:
    """N. Raises DataError (E403) where inputs have unequal numbers of samples."""
    first, *others = given.items()
    for key, values in others:
        if len(values) != len(first[1]):
            text = f"{_called(first[0])} has {len(first[1])} samples, {_called(key)} {len(values)}"
            raise DataError("E403", f"{name}: {text}; give one of each per sample.")
    return len(first[1])


def _called(key: str) -> str:
    return f"input {key}" if key.isdecimal() else f"input '{key}'"
