"""Labels at every place of a sequence, y [N, T] for samples x [N, T]: whole numbers from 0, one for each token.

    -100 (as Hugging Face writes it) or -1   a place that does not count, such as padding
    only zeros and ones                      read so where `classes` names another number than T of them, or a place does not
                                             count; else they are one-hot rows, or several labels a sample

Letters: N samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unskew.data.checks import NOWHERE
from unskew.data.convert import array_of
from unskew.data.intake.labels import MOST_GAPS, Labels
from unskew.data.intake.notes import Note, counted
from unskew.data.rows import blocks
from unskew.errors import DataError

IGNORED = -100
"""How the label of a place that has none may also be given."""


def at_every_place(y: Any, x: np.ndarray, classes: Sequence[str] | None) -> bool:
    """Whether these labels are one for each token of the samples x."""
    if x.ndim != 2 or np.shape(y) != x.shape or 0 in x.shape:
        return False
    labels = array_of(y)
    if labels.dtype.kind not in "iu":
        return False
    known = None if classes is None else len(classes)
    return int(labels.max()) > 1 or int(labels.min()) < 0 or (known is not None and known != x.shape[1])


def read_places(name: str, xs: Sequence[np.ndarray], ys: tuple[Any, Any], classes: Sequence[str] | None) -> Labels:
    """The labels of training and test samples, int64 [N, T] with -1 where there is none.

    name: of the set, for messages. xs: the samples of both. ys: of both, the second None without a test set. classes: names.
    Raises DataError (E404) for labels that cannot be read, and for those that repeat the samples.
    """
    parts = [_read(name, array_of(y), x) for y, x in zip(ys, xs) if y is not None]
    if all(_repeat(y, x) for y, x in zip(parts, xs)):
        text = "the label of every place is the token at that place; give the token that follows"
        raise DataError("E404", f"{name}: {text}: x = ids[:, :-1] and y = ids[:, 1:].")
    known, top = np.unique(np.concatenate([y[y != NOWHERE] for y in parts])), max(int(y.max()) for y in parts)
    if classes is None and top + 1 > MOST_GAPS * len(known):
        text = f"only {len(known):,} different labels, but the largest is {top}"
        raise DataError("E404", f"{name}: {text}; give classes, such as the model's whole vocabulary.")
    names = tuple(map(str, range(top + 1) if classes is None else classes))
    left_out = sum(int((y == NOWHERE).sum()) for y in parts)
    notes: list[Note] = [("labels", f"a label for each of {parts[0].shape[1]} places of a sample")]
    if left_out:
        notes.append(("labels", f"{counted(left_out, 'place')} without a label, which count nowhere"))
    return Labels(parts[0], parts[1] if len(parts) > 1 else parts[0][:0], names, tuple(notes))


def _repeat(y: np.ndarray, x: np.ndarray) -> bool:
    """Whether every label is the token at its place; of samples that are read when they are wanted, some at a time."""
    return all(bool(((y[rows] == NOWHERE) | (y[rows] == x[rows])).all()) for rows in blocks(x.shape))


def _read(name: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    if y.shape != x.shape or y.dtype.kind not in "iu":
        text = f"labels are {y.dtype} {list(y.shape)} for samples {list(x.shape)}"
        raise DataError("E404", f"{name}: {text}; give a whole number for every place of each sample.")
    y = np.where(y == IGNORED, NOWHERE, y).astype(np.int64)
    nothing = np.flatnonzero((y == NOWHERE).all(1))
    if len(nothing):
        raise DataError("E404", f"{name}: no place of sample {int(nothing[0])} has a label; leave the sample out.")
    return y
