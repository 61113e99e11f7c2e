"""What every set must satisfy: labels in range, finite samples."""

from __future__ import annotations

import numpy as np

from unskew.data.layout import Layout
from unskew.data.rows import Rows
from unskew.errors import DataError

CHUNK = 1 << 24
"""Values checked at once, so that checking a memory-mapped file never loads all of it."""
NOWHERE = -1
"""The label of a token that has none."""


def check_labels(
    name: str, y: np.ndarray, y_test: np.ndarray, classes: int, shape: tuple[int, ...], layout: Layout | None = None
) -> None:
    """Raises DataError (E404) unless labels, or masks as large as the samples, are whole numbers from 0 to classes - 1 (or
    -1, where a token has none), or truth values, bool [N, classes].

    name: of the set; shape: of one sample. layout: of rows with several inputs, whose labels are as many as one of them has
    places.
    """
    if layout and y.ndim == 2:
        shape = y.shape[1:]
    if y.dtype.kind == "b":
        if not y.ndim == y_test.ndim == 2 or y_test.dtype.kind != "b" or {y.shape[1], y_test.shape[1]} != {classes}:
            text = (
                f"truth values of labels are {list(y.shape)} and, of the test set, {y_test.dtype} {list(y_test.shape)}"
            )
            raise DataError("E404", f"{name}: {text}; they must be bool [N, {classes}].")
        return
    for part, labels in (("training", y), ("test", y_test)):
        tokens = labels.ndim == 2 and len(shape) == 1
        fits = labels.ndim == y.ndim and (labels.ndim == 1 or labels.shape[1:] == (shape if tokens else shape[1:]))
        if not fits or not np.issubdtype(labels.dtype, np.integer):
            masks = f" or masks {['N', *shape[1:]]}".replace("'", "") if len(shape) > 1 else ""
            raise DataError(
                "E404",
                f"{name}: {part} labels are {labels.dtype} {list(labels.shape)}; they must be whole numbers, [N]{masks}.",
            )
        wrong = np.argwhere((labels < (NOWHERE if tokens else 0)) | (labels >= classes))
        if len(wrong):
            row, *place = wrong[0].tolist()
            where = f"the label of {part} sample {row}" + (f" at {place}" if place else "")
            below = labels.ndim == 1 and labels[row] < 0
            renumber = ", such as numpy.unique(y, return_inverse=True)[1]" if below else ""
            raise DataError(
                "E404",
                f"{name}: {where} is {labels[tuple(wrong[0])]}; {classes} classes need labels from 0 to {classes - 1}{renumber}.",
            )


def check_rows(name: str, layout: Layout | None, shape: tuple[int, ...], pixels: tuple[int, ...]) -> None:
    """Raises DataError unless samples with several inputs are rows of their layout's length (E403) with one answer each, or
    one for each place of an input that is a sequence (E404).

    name: of the set; shape: of one sample; pixels: of its label, () where it has one.
    """
    if layout and shape != (layout.width,):
        raise DataError(
            "E403", f"{name}: samples are {list(shape)}, and their inputs take {layout.width} numbers a row."
        )
    if layout and pixels and not (len(pixels) == 1 and pixels[0] in layout.lengths):
        text = f"labels are {['N', *pixels]}, and no input of a sample has so many places ({layout})".replace("'", "")
        raise DataError("E404", f"{name}: {text}; give one label for each place of a sequence, or one a sample.")


def check_finite(name: str, part: str, x: np.ndarray) -> None:
    """Raises DataError (E405), which names the first sample with NaN or infinity. part: "training" or "test"."""
    if isinstance(x, Rows):
        _check_found(name, part, x)
        return
    step = max(1, CHUNK // max(1, int(np.prod(x.shape[1:]))))
    for begin in range(0, len(x), step):
        chunk = x[begin : begin + step]
        if np.isfinite(chunk.sum(dtype=np.float64)):
            continue
        for row, *place in np.argwhere(~np.isfinite(chunk))[:1].tolist():
            value = chunk[(row, *place)]
            raise DataError(
                "E405", f"{name}: {part} sample {begin + row} holds {value} at {place}; correct or remove it."
            )


def check_numbers(values: np.ndarray, file: str) -> None:
    """Raises DataError (E405), which names the file, where it holds NaN or infinity."""
    if not np.isfinite(values).all():
        value = values[~np.isfinite(values)][0]
        raise DataError("E405", f"{file} holds {value}, which is no number; correct it, or take the file away.")


def _check_found(name: str, part: str, x: Rows) -> None:
    """The same of rows that are read when they are wanted; they are passed through once, whoever asks."""
    wrong = ~(np.isfinite(x.survey.low) & np.isfinite(x.survey.high))
    if wrong.any():
        row = int(np.argmax(wrong))
        sample = np.asarray(x[row])
        place = np.argwhere(~np.isfinite(sample))[0].tolist() if not np.isfinite(sample).all() else []
        raise DataError(
            "E405", f"{name}: {part} sample {row} holds {sample[tuple(place)]} at {place}; correct or remove it."
        )


def check_lengths(name: str, part: str, x: np.ndarray, y: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """Raises DataError (E403) unless there is one label, and one value of every column, per sample."""
    if len(x) != len(y):
        raise DataError("E403", f"{name}: {len(x)} {part} samples but {len(y)} labels; give one label per sample.")
    for column, values in columns.items():
        if len(values) != len(y):
            raise DataError(
                "E403",
                f"{name}: column '{column}' has {len(values)} values for {len(y)} {part} samples; "
                "give one value per sample.",
            )
