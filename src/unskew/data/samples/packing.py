"""Samples with several inputs, each sample packed into one row of numbers.

A dictionary of inputs stands for keyword arguments of the model's forward, a tuple for positional ones; in an
archive, `x.scan` and `x.age` take the place of `x`. Code that stores, sends or compares samples handles rows
[N, D] of float32; only the code that calls the model unpacks them (unskew.core.module_inputs). If the rows do
not fit into memory, they go to a scratch file.
Letters: N samples, D numbers of a row, n rows that are packed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.data.samples.conversion import DEPTHS, LARGE, check_axes, sample_array
from unskew.data.samples.reading_notes import Note
from unskew.data.storage.rows_on_disk import (
    Rows,
    SampleSink,
    is_streamed,
    mapped_rows,
    row_blocks,
    scratch_note,
)
from unskew.errors import DataError, excerpt
from unskew.formats.input_layout import (
    KINDS,
    MOST_AXES,
    MOST_INPUTS,
    MOST_NUMBERS,
    Input,
    Layout,
    is_misnamed,
)

LARGEST_WHOLE = 1 << 24
"""float32 holds every whole number up to this one."""


@dataclass(frozen=True)
class PackedSamples:
    """x: float32 [N, D], rows in the order of the layout. notes: how they were converted."""

    x: np.ndarray
    layout: Layout
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def are_inputs(x: Any, y: Any) -> bool:
    """Whether x holds several inputs for the labels y: a dictionary, or a tuple of arrays each with a row for
    every label.

    A tuple with one array for each label is a tuple of samples, unless each of the arrays has a row for every
    label.
    """
    if isinstance(x, PackedSamples | Mapping):
        return True
    if not (isinstance(x, tuple) and x and all(hasattr(part, "shape") and len(part.shape) for part in x)):
        return False
    count = len(y) if hasattr(y, "__len__") else 0
    return len(x) != count or all(len(part) == count for part in x)


def pack(x: Any, name: str, as_is: bool = False) -> PackedSamples:
    """A dictionary or tuple of inputs [N, ...] as rows, and the layout that follows from them.

    as_is: accept inputs with shapes that look like images with channels last or missing.
    Raises DataError: E403 for values that are no inputs, E405 as `pack_to_layout` does.
    """
    if isinstance(x, PackedSamples):
        return x
    inputs = _input_arrays(x, name)
    if not inputs:
        raise DataError("E403", f"{name}: an empty dictionary of inputs was given; name an array.")
    for key, values in inputs.items():
        if not as_is and values.ndim > 1:
            check_axes(f"{name}: {_input_name(key)}", values, series=False)
    layout = Layout(tuple(_input_of(n, values, name) for n, values in inputs.items()), isinstance(x, Mapping))
    if layout.width > MOST_NUMBERS or len(inputs) > MOST_INPUTS:
        text = f"a sample has {len(inputs)} inputs of {layout.width:,} numbers together"
        raise DataError("E403", f"{name}: {text}; at most {MOST_INPUTS} of {MOST_NUMBERS:,} are read.")
    notes: list[Note] = [
        ("scaled", f"{_input_name(item.name)}: whole numbers of an image were divided by {item.divided_by:,}")
        for item in layout.inputs
        if item.divided_by > 1
    ]
    rows = pack_to_layout(layout, inputs if layout.named else tuple(inputs.values()), name)
    if is_streamed(rows):
        notes.append(scratch_note(rows.shape))
    return PackedSamples(rows, layout, tuple(notes))


def pack_to_layout(layout: Layout, x: Any, name: str) -> np.ndarray:
    """A dictionary or tuple of inputs [N, ...] as rows of this layout, float32 [N, D], in a scratch file if
    they do not fit into memory.

    name: name of the samples, for messages. Raises DataError: E403 for missing and further inputs, other
    shapes and types, E405 for NaN, infinity, and whole numbers that float32 cannot hold.
    """
    inputs, names = _input_arrays(x, name), [item.name for item in layout.inputs]
    if isinstance(x, Mapping) != layout.named or {*inputs} != {*names}:
        fault = f"samples have {layout}, and {', '.join(map(_input_name, inputs))} were given"
        form = f"a dictionary of {', '.join(names)}" if layout.named else f"a tuple of {len(names)}"
        raise DataError("E403", f"{name}: {fault}; give {form}, each an array [N, ...].")
    count = len(inputs[names[0]])
    for item in layout.inputs:
        values = inputs[item.name]
        actual, subject = _input_of(item.name, values, name), f"{name}: {_input_name(item.name)}"
        numbers = actual.divided_by == item.divided_by and item.kind in ("float32", actual.kind)
        if actual.shape != item.shape or not numbers:
            fault = f"{subject} is {list(actual.shape)} in a sample, of {values.dtype}"
            raise DataError("E403", f"{fault}, and {item} is needed.")
        if len(values) != count:
            fault = f"{_input_name(names[0])} has {count} samples, {_input_name(item.name)} {len(values)}"
            raise DataError("E403", f"{name}: {fault}; give one of each per sample.")
    sink = SampleSink(name, (count, layout.width))
    for rows in row_blocks(sink.shape):
        packed = np.empty((len(rows), layout.width), np.float32)
        for item, start, end in layout.places:
            flat = inputs[item.name][rows].reshape(len(rows), item.size)
            with np.errstate(over="ignore"):  # values that are too large become infinite, which is refused
                part = flat if item.divided_by == 1 else flat / np.float32(item.divided_by)
                packed[:, start:end] = part
            _check_numbers(packed[:, start:end], flat, item, name, int(rows[0]))
        sink.put(int(rows[0]), packed)
    return sink.samples()


def _check_numbers(packed: np.ndarray, flat: np.ndarray, item: Input, name: str, begin: int) -> None:
    """Raises DataError (E405) for NaN and infinity among packed floats [n, numbers], and for whole numbers
    that float32 would round, or may have rounded already. flat: the numbers as they were given. begin: the
    number of the first sample."""
    fault, wrong = "correct or remove it", np.zeros(0, bool)
    if item.kind == "float32" and not np.isfinite(packed.sum(dtype=np.float64)):
        wrong = ~np.isfinite(packed)
    elif item.kind == "int64":
        largest = LARGEST_WHOLE if flat.dtype.kind in "iu" else LARGEST_WHOLE - 1
        wrong = np.abs(flat.astype(np.float64)) > largest
        fault = f"whole numbers are kept up to {largest:,}; number what it stands for anew, or give floats"
    for row, place in np.argwhere(wrong)[:1].tolist():
        text = f"{_input_name(item.name)} of sample {begin + row} holds {flat[row, place]}"
        raise DataError("E405", f"{name}: {text}; {fault}.")


def _input_arrays(x: Any, name: str) -> dict[str, np.ndarray]:
    """The arrays by name, in alphabetical order, or by place."""
    if isinstance(x, Mapping):
        for key in x:
            if not isinstance(key, str) or is_misnamed(key):
                text = f"the input {excerpt(key)} has a name that is no keyword of a function"
                raise DataError("E403", f"{name}: {text}; write letters, digits and underscores.")
        arrays = {key: x[key] for key in sorted(x)}
    elif isinstance(x, tuple | list):
        arrays = {str(i + 1): values for i, values in enumerate(x)}
    else:
        text = "samples have several inputs; give a dictionary or a tuple of arrays [N, ...]"
        raise DataError("E403", f"{name}: {text}.")
    for key, values in arrays.items():
        label = f"{name}: {_input_name(key)}"
        arrays[key] = array = sample_array(values, label)
        if isinstance(array, np.memmap) and array.nbytes > LARGE:  # its rows are read when they are needed
            arrays[key] = mapped_rows(array, None, label)
    return arrays


def _input_of(key: str, values: np.ndarray, name: str) -> Input:
    """The description of an input [N, ...]: images of unsigned whole numbers are divided by the largest
    value of their type, other whole numbers stay."""
    shape = tuple(values.shape[1:])
    if not math.prod(shape) or len(shape) > MOST_AXES:
        text = f"{_input_name(key)} is {list(shape)} in a sample"
        raise DataError("E403", f"{name}: {text}; give it at least one number.")
    dtype = values.source.source_dtype if isinstance(values, Rows) else values.dtype
    bits = DEPTHS.get(dtype) if len(shape) > 1 else None
    return Input(key, shape, "float32" if bits else KINDS[dtype.kind], (1 << bits) - 1 if bits else 1)


def _input_name(key: str) -> str:
    return f"input {key}" if key.isdecimal() else f"input '{key}'"


def archive_inputs(archive: Mapping[str, Any], name: str, path: object) -> dict[str, Any]:
    """The inputs `x.NAME` of an archive by NAME, with `x`, `x_train` or `x_test` as the prefix; {} without
    any.

    Raises DataError (E401) if there is also an array `x`, because one of both would be left out.
    """
    inputs = {key.removeprefix(f"{name}."): archive[key] for key in archive if key.startswith(f"{name}.")}
    if inputs and name in archive:
        text = f"{path} holds samples twice, as '{name}' and as {excerpt(f'{name}.{next(iter(inputs))}')}"
        raise DataError("E401", f"{text}; keep '{name}' for one input, or {name}.NAME for several.")
    return inputs


def archive_inputs_for(archive: Mapping[str, Any], path: object) -> Mapping[str, Any]:
    """The inputs that a model takes by name: arrays `x.NAME` as in training, `x_test.NAME`, or all arrays by
    their names.

    Raises DataError (E401) as `archive_inputs` does.
    """
    return archive_inputs(archive, "x", path) or archive_inputs(archive, "x_test", path) or archive


def input_column(layout: Layout, x: np.ndarray, which: int) -> np.ndarray:
    """One input of packed rows [N, D], as [N, numbers of the input]. Rows that are not in memory are read."""
    _, start, end = list(layout.places)[which]
    if not is_streamed(x):
        return x[:, start:end]
    return np.concatenate([x[rows][:, start:end] for rows in row_blocks(x.shape)])
