"""Labels in the forms that people keep them in, as whole numbers from 0.

    words                   numbered in alphabetical order (whole numbers in theirs); the words are the classes' names
    True, False; 0.0, 1.0   as 0 and 1
    one column per class    one-hot rows, as the number of the column that holds the 1
    rows of zeros and ones  several labels a sample, where many rows hold none or more than one
    1 to C                  as 0 to C-1, unless a sample has label 0
    fractions               refused, unless they are named as the target of a regression
    numbers far apart       refused above 10 classes for each that occurs

Letters: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.data.convert import array_of
from unskew.data.intake import cells
from unskew.data.intake.masks import Origin, as_masks, one_hot_masks
from unskew.data.intake.notes import Note, some
from unskew.data.target import Target
from unskew.errors import DataError, excerpt, suggestion

MOST_GAPS = 10
"""Classes for each class that occurs at most."""
SPELLINGS = "numbers in several spellings, such as 1, 01 and 1.0, are one class"
CLASSES_IF = 0.95
"""Rows of zeros and ones are classes, of which some are damaged, if more than this share of them hold a single one."""


@dataclass(frozen=True)
class Labels:
    """y, y_test: int64 [N], or masks; classes: their names. target: of labels that are numbers, float64 [N].
    unnamed: whether the classes are the numbers that the labels were, which nobody has named."""

    y: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    target: Target | None = None
    unnamed: bool = False


def read_labels(
    name: str,
    ys: tuple[Any, Any],
    ndim: int,
    classes: Sequence[str] | None,
    origins: Sequence[Origin] = (),
) -> Labels:
    """The labels of training and test samples, numbered together.

    name: of the set, for messages. ys: of both, the second None without a test set. ndim: of the samples' array.
    classes: names of all classes if they are known. origins: of the samples of both, if they are known.
    Raises DataError (E404) for labels that cannot be read.
    """
    parts = [_flat(name, array_of(y), ndim) for y in ys if y is not None]
    names = None if classes is None else tuple(str(c) for c in classes)
    notes: list[Note] = []
    if _several(name, parts, ndim):
        y, *test = [part.astype(bool) for part in parts]
        given = names or tuple(map(str, range(y.shape[1])))
        text = f"rows of {y.shape[1]} zeros and ones were read as labels, of which a sample has {y.sum(1).mean():.2f}"
        return Labels(y, test[0] if test else y[:0], given, (("labels", text),))
    width = max((y.shape[1] for y in parts if _are_flags(y, ndim)), default=0)
    parts, counted = [_without_one_hot(name, y, ndim, notes) for y in parts], False
    if any(y.ndim > 1 for y in parts):
        parts, names = as_masks(name, parts, names, notes, origins)
    elif any(y.dtype.kind in "US" for y in parts):
        parts, names = _words(name, parts, names, notes)
    else:
        parts, counted = [_whole(name, y, notes) for y in parts], not width
        if names is None:
            parts, names = (parts, tuple(map(str, range(width)))) if width else _numbers(name, parts, notes)
    y_test = parts[1] if len(parts) > 1 else parts[0][:0]
    _tell_missing(parts, names, notes)
    return Labels(parts[0], y_test, names, tuple(notes), unnamed=classes is None and counted)


def label_array(name: str, y: Any) -> np.ndarray:
    """Labels as an array, as they are.

    name: of the set, for the message. Raises DataError: E404 for lists of unequal lengths and for rows without a column, E403
    for what is no array.
    """
    rows = y if isinstance(y, list | tuple) else ()
    if len({len(row) if isinstance(row, list | tuple | set) else -1 for row in rows}) > 1:
        text = "the labels of some samples are more than of others"
        raise DataError("E404", f"{name}: {text}; write a row of as many zeros and ones for each sample, [N, labels].")
    values = array_of(y)
    if values.ndim > 1 and len(values) and not values.shape[1]:
        raise DataError(
            "E404", f"{name}: labels are {list(values.shape)}, so no sample has any; give one column for each."
        )
    return values


def _flat(name: str, y: np.ndarray, ndim: int) -> np.ndarray:
    """Without an axis of length 1 behind the samples' own; objects as words."""
    if y.ndim > 1 and y.shape[1] == 1 and y.ndim in (2, ndim) and y.size:
        y = y.squeeze(1)
    if y.dtype.kind == "O":
        empty = next((i for i, v in enumerate(y.reshape(-1).tolist()) if v is None or v != v), None)
        if empty is not None:
            raise DataError("E404", f"{name}: sample {empty} has no label; fill it in, or leave the sample out.")
        kinds = {type(v) for v in y.reshape(-1).tolist()}
        y = y.astype(np.float64 if kinds <= {int, float, bool} else str)
    if not y.size:
        return y.astype(np.int64) if y.ndim == 1 else y
    if y.dtype.kind not in "biufUS":
        raise DataError("E404", f"{name}: labels are {y.dtype}; they must be whole numbers from 0, [N], or words.")
    return y


def _several(name: str, parts: Sequence[np.ndarray], ndim: int) -> bool:
    """Whether rows [N, L] of zeros and ones say which of several labels a sample has: not every row has a single one.

    Raises DataError (E404) for classes of which a few rows are damaged, and for two parts of different forms.
    """
    flags = [y for y in parts if _are_flags(y, ndim)]
    single = np.concatenate([y.sum(1) == 1 for y in flags] or [np.ones(0, bool)])
    if single.all():
        return False
    if len({y.shape[1:] for y in parts}) > 1 or len(flags) < len(parts):
        forms = " and ".join(f"{y.dtype} {list(y.shape)}" for y in parts)
        raise DataError("E404", f"{name}: labels are {forms}; give both as rows of as many zeros and ones.")
    if single.mean() > CLASSES_IF:
        row = int(np.argmin(single))
        text = (
            f"sample {row} has {int(np.concatenate(flags)[row].sum())} classes, and {single.mean():.1%} of all have one"
        )
        remedy = "mend it, or, where a sample may have several labels, name them with target, such as target='a,b,c'"
        raise DataError("E404", f"{name}: {text}; {remedy}.")
    return True


def _are_flags(y: np.ndarray, ndim: int) -> bool:
    return y.ndim == 2 and ndim != 3 and y.dtype.kind in "biuf" and bool(np.isin(y, (0, 1)).all())


def _without_one_hot(name: str, y: np.ndarray, ndim: int, notes: list[Note]) -> np.ndarray:
    """[N, C] of zeros with a single one in each row, as [N]; masks [N, C, H, W] likewise."""
    if y.ndim == ndim and y.ndim > 2 and y.dtype.kind in "biuf":
        return one_hot_masks(name, y, notes)
    if y.ndim != 2 or ndim == 3:
        if y.ndim not in (1, ndim - 1):
            raise DataError(
                "E404",
                f"{name}: labels are {y.dtype} {list(y.shape)}; they must be whole numbers from 0, [N], or masks "
                "[N, H, W].",
            )
        return y
    if y.dtype.kind in "US" or not np.isin(y, (0, 1)).all():
        row, column = np.argwhere(~np.isin(y, (0, 1)))[0].tolist()
        value = excerpt(str(y[row, column])) if y.dtype.kind in "US" else f"{y[row, column]:g}"
        raise DataError(
            "E404",
            f"{name}: labels are {y.dtype} {list(y.shape)}, but not zeros and ones: column {column} of sample {row} is {value}; "
            "write 1 for each label that the sample has and 0 elsewhere, or give one class a sample, [N].",
        )
    notes.append(("labels", f"one-hot rows of {y.shape[1]} columns were read as classes"))
    return y.argmax(1)


def _words(
    name: str, parts: list[np.ndarray], classes: tuple[str, ...] | None, notes: list[Note]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Words numbered by their class."""
    texts = [cells.words(y.astype(str)) for y in parts]
    if classes is not None:
        classes = tuple(cells.word(c) for c in classes)
    elif len(kinds := {w for y in texts for w in np.unique(y).tolist()}) and all(map(cells.WHOLE.fullmatch, kinds)):
        texts = [np.array([cells.canonical(w) for w in y.tolist()], dtype=str) for y in texts]
        if len({w for y in texts for w in np.unique(y).tolist()}) < len(kinds):
            notes.append(("labels", SPELLINGS))
    known = classes if classes is not None else in_order({w for y in texts for w in np.unique(y).tolist()})
    place = {word: i for i, word in enumerate(known)}
    for y in texts:
        for row, word in enumerate(y.tolist()):
            if word.lower() in cells.MISSING and (classes is None or word not in classes):
                written = f", only {excerpt(word)}" if word else ""
                count = sum(w.lower() in cells.MISSING for w in y.tolist())
                raise DataError(
                    "E404",
                    f"{name}: sample {row} has no label{written} ({count:,} are missing); fill it in, or leave the sample out.",
                )
            if word not in place:
                near = suggestion(word, known)
                raise DataError(
                    "E404", f"{name}: the label of sample {row} is {excerpt(word)}, which is none of the classes.{near}"
                )
    if len(known) > 50 and len(known) * 2 > sum(map(len, texts)):
        raise DataError(
            "E404",
            f"{name}: {len(known):,} different labels for {sum(map(len, texts)):,} samples, such as "
            f"{excerpt(known[0], 40)}; is this the column of labels? Name another, or give classes.",
        )
    if classes is None:
        notes.append(("labels", f"labels that are words were numbered in this order: {some(list(known), 10)}"))
    return [np.array([place[w] for w in y.tolist()], dtype=np.int64) for y in texts], tuple(known)


def in_order(words: set[str]) -> tuple[str, ...]:
    """Class names in alphabetical order; if all of them are whole numbers, in theirs."""
    if all(w.lstrip("-").isdigit() and w.isascii() for w in words):
        return tuple(sorted(words, key=int))
    return tuple(sorted(words))


def _whole(name: str, y: np.ndarray, notes: list[Note]) -> np.ndarray:
    """int64 [N] from any kind of number that is whole."""
    if y.dtype.kind == "u" and len(y) and int(y.max()) > np.iinfo(np.int64).max:
        row = int(y.argmax())
        text = f"the label of sample {row} is {y[row]}, which is no number of a class"
        raise DataError("E404", f"{name}: {text}; number classes from 0, or write them as words.")
    if y.dtype.kind != "f":
        return y.astype(np.int64)
    if not np.isfinite(y).all():
        raise DataError(
            "E404",
            f"{name}: sample {int(np.argmin(np.isfinite(y)))} has no label; fill it in, or leave the sample out.",
        )
    fractions = y != np.round(y)
    if fractions.any():
        row = int(np.argmax(fractions))
        raise DataError(
            "E404",
            f"{name}: the label of sample {row} is {y[row]:g}; numbers with fractions ask for regression: name the "
            "target, target='price'. Classes are whole numbers from 0 or words.",
        )
    notes.append(("labels", f"{y.dtype} labels, all whole, were read as classes"))
    return y.astype(np.int64)


def _numbers(name: str, parts: list[np.ndarray], notes: list[Note]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Whole numbers and the classes that they stand for."""
    present = np.unique(np.concatenate(parts))
    if not len(present):
        return parts, ()
    top = int(present.max())
    if top < 0:
        raise DataError("E404", f"{name}: all labels are below 0, such as {top}; number classes from 0.")
    if len(present) == top > 1 and present.min() == 1:
        notes.append(("labels", f"labels 1 to {top} were read as classes 0 to {top - 1}, named '1' to '{top}'"))
        return [y - 1 for y in parts], tuple(map(str, range(1, top + 1)))
    if top + 1 > MOST_GAPS * len(present):
        raise DataError(
            "E404",
            f"{name}: only {len(present):,} different labels, but the largest is {top}, which would make {top + 1:,} "
            "classes. Number them from 0: y = numpy.unique(y, return_inverse=True)[1]; or give classes.",
        )
    return parts, tuple(map(str, range(top + 1)))


def _tell_missing(parts: list[np.ndarray], classes: tuple[str, ...], notes: list[Note]) -> None:
    """Notes on classes of which there are no training or no test samples, and on a single class."""
    if len(classes) == 1 and parts[0].size:
        notes.append(("labels", f"all samples are of one class, {classes[0]}, so there is nothing to tell apart"))
    for part, y in zip(("training", "test"), parts):
        if not y.size or y.min() < 0 or y.max() >= len(classes):
            continue
        absent = np.setdiff1d(np.arange(len(classes)), np.unique(y)).tolist()
        if absent:
            what = "pixel" if y.ndim > 1 else "sample"
            notes.append(("labels", f"no {part} {what} of class {some([classes[c] for c in absent], 5)}"))
