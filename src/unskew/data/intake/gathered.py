"""Samples with several inputs that are handed out one at a time, brought together input by input.

Letters: N samples, D numbers of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from unskew.data.intake.images import channels_first
from unskew.data.layout import Layout
from unskew.data.packed import Packed, packed, rows_of
from unskew.errors import DataError, excerpt


def gathered(name: str, xs: Iterable[Any]) -> Packed:
    """The samples as rows. xs: of each its inputs, a dictionary by name or a tuple.

    Raises DataError (E403), with the number of the sample, where one has other inputs than the first, or of other shapes;
    and as `packed` does.
    """
    columns: dict[Any, list[np.ndarray]] = {}
    named = True
    for i, x in enumerate(xs):
        inputs = _inputs(x, i, name)
        if not i:
            columns, named = {key: [] for key in inputs}, isinstance(x, Mapping)
        if named != isinstance(x, Mapping) or inputs.keys() != columns.keys():
            text = f"sample 0 has the inputs {excerpt(list(columns))}, sample {i} {excerpt(list(inputs))}"
            raise DataError("E403", f"{name}: {text}; give every sample the same.")
        for key, value in inputs.items():
            columns[key].append(value)
    arrays = {key: _stacked(values, f"{name}: {_called(key)}") for key, values in columns.items()}
    return packed(arrays if named else tuple(arrays.values()), name)


def first_row(name: str, x: Any) -> Packed:
    """Sample 0 as a row, by whose layout the others are made. Raises DataError as `gathered` does."""
    return packed(_alone(x, 0, name), name)


def row(name: str, layout: Layout, x: Any, i: int) -> np.ndarray:
    """Sample i as a row, float32 [D]. Raises DataError: E403 where it has other inputs than sample 0, E405 as `rows_of`."""
    return rows_of(layout, _alone(x, i, name), f"{name}: sample {i}")[0]


def _alone(x: Any, i: int, name: str) -> Any:
    """The inputs of one sample, each with an axis [1, ...] in front."""
    inputs = {key: value[None] for key, value in _inputs(x, i, name).items()}
    return inputs if isinstance(x, Mapping) else tuple(inputs.values())


def _inputs(x: Any, i: int, name: str) -> dict[Any, np.ndarray]:
    """The inputs of sample i by name, or by number from 1."""
    if not isinstance(x, Mapping | tuple | list):
        kind = type(x).__name__
        raise DataError(
            "E403", f"{name}: sample 0 has several inputs, sample {i} a single {kind}; give every sample the same."
        )
    given = x if isinstance(x, Mapping) else dict(enumerate(x, 1))
    return {key: _value(value, f"{name}: {_called(key)} of sample {i}") for key, value in given.items()}


def _value(value: Any, label: str) -> np.ndarray:
    if value is None or isinstance(value, str | bytes | Mapping):
        what = "missing" if value is None else "text" if isinstance(value, str | bytes) else "a dictionary"
        raise DataError("E403", f"{label} is {what}; an input is a number or an array of numbers.")
    return channels_first(value)


def _stacked(values: list[np.ndarray], label: str) -> np.ndarray:
    for i, value in enumerate(values):
        if value.shape != values[0].shape:
            shapes = f"{list(values[0].shape)} in sample 0 and {list(value.shape)} in sample {i}"
            raise DataError("E403", f"{label} is {shapes}; cut, pad or resize it to one shape.")
    return np.stack(values)


def _called(key: Any) -> str:
    return f"input {key}" if isinstance(key, int) else f"input {excerpt(key)}"
