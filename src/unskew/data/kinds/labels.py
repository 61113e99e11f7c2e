"""Labels in the forms in which people store them, as class numbers, truth values or numbers to predict.

    words                   numbered in alphabetical order (whole numbers in theirs); they name the classes
    True, False; 0.0, 1.0   as 0 and 1
    one column per class    one-hot rows, as the number of the column that holds the 1
    rows of zeros and ones  several labels a sample, if many rows hold none or more than one
    1 to C                  as 0 to C-1, unless a sample has label 0
    fractions               refused, unless they are named as the target of a regression
    numbers far apart       refused above 10 classes for each that occurs

Letters: N samples, C classes, L labels of a sample, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.kinds.masks import as_masks
from unskew.data.samples.conversion import array_of
from unskew.data.samples.dataset import NO_LABEL, Target, check_targets
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.data.storage.rows_on_disk import row_blocks
from unskew.errors import DataError, excerpt, suggestion
from unskew.formats.specs import split_names

MOST_GAPS = 10
"""Maximal ratio of the number of classes to the number of classes that occur."""
SPELLINGS = "numbers in several spellings, such as 1, 01 and 1.0, are one class"
ONE_HOT_SHARE = 0.95
"""Rows of zeros and ones are damaged one-hot rows if more than this share of them hold a single one."""


@dataclass(frozen=True)
class Labels:
    """Labels of a set as numbers.

    y, y_test: int64 [N], or masks. classes: their names. target: set if labels are numbers to predict,
    float64 [N].
    unnamed: whether the classes have no names but the numbers of the labels.
    """

    y: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    target: Target | None = None
    unnamed: bool = False


def read_labels(name: str, ys: tuple[Any, Any], ndim: int, classes: Sequence[str] | None) -> Labels:
    """The labels of training and test samples, numbered together.

    name: name of the set, for messages. ys: labels of both parts, the second None without a test set. ndim:
    axes of the samples' array.
    classes: names of all classes if they are known.
    Raises DataError (E404) for labels that cannot be read.
    """
    parts = [_flat_labels(name, array_of(y), ndim) for y in ys if y is not None]
    names = None if classes is None else tuple(str(c) for c in classes)
    notes: list[Note] = []
    if _are_several(name, parts, ndim):
        return read_multilabels(name, ys, names or tuple(map(str, range(parts[0].shape[1]))))
    width = max((y.shape[1] for y in parts if _are_flags(y, ndim)), default=0)
    parts, counted = [_without_one_hot(name, y, ndim, notes) for y in parts], False
    if any(y.ndim > 1 for y in parts):
        parts, names = as_masks(name, parts, names, notes)
    elif any(y.dtype.kind in "US" for y in parts):
        parts, names = _word_labels(name, parts, names, notes)
    else:
        parts, counted = [_whole_labels(name, y, notes) for y in parts], not width
        if width and names is None:
            names = tuple(map(str, range(width)))
        elif names is None:
            parts, names = _number_labels(name, parts, notes)
    y_test = parts[1] if len(parts) > 1 else parts[0][:0]
    _note_missing(parts, names, notes)
    return Labels(parts[0], y_test, names, tuple(notes), unnamed=classes is None and counted)


def _flat_labels(name: str, y: np.ndarray, ndim: int) -> np.ndarray:
    """Labels without a last axis of length 1; objects become words."""
    if y.ndim > 1 and y.shape[1] == 1 and y.ndim in (2, ndim) and y.size:
        y = y.squeeze(1)
    if y.dtype.kind == "O":
        values = y.reshape(-1).tolist()
        empty = next((i for i, v in enumerate(values) if v is None or v != v), None)
        if empty is not None:
            raise DataError("E404", f"{name}: sample {empty} has no label; {FILL_IN}.")
        y = y.astype(np.float64 if {type(v) for v in values} <= {int, float, bool} else str)
    if not y.ndim or (len(y) and (not y.size or y.dtype.kind not in "biufUS")):
        remedy = "write whole numbers from 0, [N], or words"
        raise DataError("E404", f"{name}: labels are {y.dtype} {list(y.shape)}; {remedy}.")
    return y.astype(np.int64) if y.ndim == 1 and not y.size else y


def _are_several(name: str, parts: Sequence[np.ndarray], ndim: int) -> bool:
    """Whether rows [N, L] of zeros and ones are several labels a sample: not every row has a single one."""
    flags = [y for y in parts if _are_flags(y, ndim)]
    single = np.concatenate([y.sum(1) == 1 for y in flags] or [np.ones(0, bool)])
    if single.all():
        return False
    if len({y.shape[1:] for y in parts}) > 1 or len(flags) < len(parts):
        forms = " and ".join(f"{y.dtype} {list(y.shape)}" for y in parts)
        raise DataError("E404", f"{name}: labels are {forms}; give both as rows of as many zeros and ones.")
    if single.mean() > ONE_HOT_SHARE:
        row = int(np.argmin(single))
        fault = f"sample {row} has {int(np.concatenate(flags)[row].sum())} classes"
        remedy = "mend it, or, where a sample may have several labels, name them, such as target='a,b,c'"
        raise DataError("E404", f"{name}: {fault}, and {single.mean():.1%} of all have one; {remedy}.")
    return True


def _are_flags(y: np.ndarray, ndim: int) -> bool:
    return y.ndim == 2 and ndim != 3 and y.dtype.kind in "biuf" and bool(np.isin(y, (0, 1)).all())


def _without_one_hot(name: str, y: np.ndarray, ndim: int, notes: list[Note]) -> np.ndarray:
    """One-hot labels [N, C] as [N]."""
    if y.ndim == 1 or (y.ndim == ndim - 1 and ndim > 3):
        return y
    if y.ndim != 2 or ndim == 3:
        remedy = "they must be whole numbers from 0, [N], or masks [N, H, W]"
        raise DataError("E404", f"{name}: labels are {y.dtype} {list(y.shape)}; {remedy}.")
    if y.dtype.kind in "US" or not np.isin(y, (0, 1)).all():
        row, column = np.argwhere(~np.isin(y, (0, 1)))[0].tolist()
        fault = f"but not zeros and ones: column {column} of sample {row} is {excerpt(str(y[row, column]))}"
        remedy = "write 1 for each label that the sample has and 0 elsewhere, or give one class a sample, [N]"
        raise DataError("E404", f"{name}: labels are {y.dtype} {list(y.shape)}, {fault}; {remedy}.")
    notes.append(("labels", f"one-hot rows of {y.shape[1]} columns were read as classes"))
    return y.argmax(1)


def _word_labels(
    name: str, parts: list[np.ndarray], classes: tuple[str, ...] | None, notes: list[Note]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Words numbered by their class."""
    texts = [cells.words(y.astype(str)) for y in parts]
    kinds = {w for y in texts for w in np.unique(y).tolist()}
    if classes is not None:
        classes = tuple(cells.word(c) for c in classes)
    elif kinds and all(map(cells.WHOLE_NUMBER.fullmatch, kinds)):
        texts = [np.array([cells.canonical(w) for w in y.tolist()], dtype=str) for y in texts]
        if len({w for y in texts for w in np.unique(y).tolist()}) < len(kinds):
            notes.append(("labels", SPELLINGS))
    vocabulary = classes or sort_classes({w for y in texts for w in np.unique(y).tolist()})
    place = {word: i for i, word in enumerate(vocabulary)}
    for y in texts:
        for row, word in enumerate(y.tolist()):
            if word.lower() in cells.MISSING and word not in (classes or ()):
                count = sum(w.lower() in cells.MISSING for w in y.tolist())
                cell = f", only {excerpt(word)}" if word else ""
                raise DataError(
                    "E404", f"{name}: sample {row} has no label{cell} ({count:,} are missing); {FILL_IN}."
                )
            if word not in place:
                fault = f"the label of sample {row} is {excerpt(word)}, which is none of the classes"
                raise DataError("E404", f"{name}: {fault}.{suggestion(word, vocabulary)}")
    samples = sum(map(len, texts))
    if len(vocabulary) > 50 and len(vocabulary) * 2 > samples:
        fault = f"{len(vocabulary):,} different labels for {samples:,} samples, such as"
        remedy = "is this the column of labels? Name another, or give classes"
        raise DataError("E404", f"{name}: {fault} {excerpt(vocabulary[0], 40)}; {remedy}.")
    if classes is None:
        order = abbreviate(list(vocabulary), 10)
        notes.append(("labels", f"labels that are words were numbered in this order: {order}"))
    return [np.array([place[w] for w in y.tolist()], dtype=np.int64) for y in texts], tuple(vocabulary)


def sort_classes(words: set[str]) -> tuple[str, ...]:
    """Class names in alphabetical order, or in numerical order if all of them are whole numbers."""
    if all(w.lstrip("-").isdigit() and w.isascii() for w in words):
        return tuple(sorted(words, key=int))
    return tuple(sorted(words))


def _whole_labels(name: str, y: np.ndarray, notes: list[Note]) -> np.ndarray:
    """Whole numbers of any type as int64 [N]."""
    if y.dtype.kind != "f":
        if y.dtype.kind == "u" and len(y) and int(y.max()) > np.iinfo(np.int64).max:
            fault = f"the label of sample {int(y.argmax())} is {y.max()}, which is no number of a class"
            raise DataError("E404", f"{name}: {fault}; number classes from 0, or write them as words.")
        return y.astype(np.int64)
    if not np.isfinite(y).all():
        raise DataError("E404", f"{name}: sample {int(np.argmin(np.isfinite(y)))} has no label; {FILL_IN}.")
    if (fractions := y != np.round(y)).any():
        row = int(np.argmax(fractions))
        fault = f"the label of sample {row} is {y[row]:g}; numbers with fractions ask for regression"
        remedy = "name the target, target='price'. Classes are whole numbers from 0 or words"
        raise DataError("E404", f"{name}: {fault}: {remedy}.")
    notes.append(("labels", f"{y.dtype} labels, all whole, were read as classes"))
    return y.astype(np.int64)


FILL_IN = "fill it in, or leave the sample out"


def _number_labels(
    name: str, parts: list[np.ndarray], notes: list[Note]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Whole numbers and their classes."""
    present = np.unique(np.concatenate(parts))
    if not len(present):
        return parts, ()
    top = int(present.max())
    if top < 0:
        raise DataError("E404", f"{name}: all labels are below 0, such as {top}; number classes from 0.")
    if len(present) == top > 1 and present.min() == 1:
        text = f"labels 1 to {top} were read as classes 0 to {top - 1}, named '1' to '{top}'"
        notes.append(("labels", text))
        return [y - 1 for y in parts], tuple(map(str, range(1, top + 1)))
    if top + 1 > MOST_GAPS * len(present):
        fault = f"only {len(present):,} different labels, but the largest is {top}"
        remedy = "number them from 0: y = numpy.unique(y, return_inverse=True)[1]; or give classes"
        raise DataError("E404", f"{name}: {fault}; {remedy}.")
    return parts, tuple(map(str, range(top + 1)))


def _note_missing(parts: list[np.ndarray], classes: tuple[str, ...], notes: list[Note]) -> None:
    """Notes on classes without training or test samples, and on a single class."""
    if len(classes) == 1 and parts[0].size:
        notes.append(("labels", f"all samples are of one class, {classes[0]}: there is nothing to learn"))
    for part, y in zip(("training", "test"), parts):
        if not y.size or y.min() < 0 or y.max() >= len(classes):
            continue
        if absent := np.setdiff1d(np.arange(len(classes)), np.unique(y)).tolist():
            unit = "pixel" if y.ndim > 1 else "sample"
            names = abbreviate([classes[c] for c in absent], 5)
            notes.append(("labels", f"no {part} {unit} of class {names}"))


IGNORE_INDEX = -100
"""An alternative mark for a place that has no label."""


def are_token_labels(y: Any, x: np.ndarray, classes: Sequence[str] | None) -> bool:
    """Whether these are labels for each token of the samples x."""
    if x.ndim != 2 or np.shape(y) != x.shape or 0 in x.shape:
        return False
    labels = array_of(y)
    if labels.dtype.kind not in "iu":
        return False
    count = None if classes is None else len(classes)
    return int(labels.max()) > 1 or int(labels.min()) < 0 or (count is not None and count != x.shape[1])


def read_token_labels(
    name: str, xs: Sequence[np.ndarray], ys: tuple[Any, Any], classes: Sequence[str] | None
) -> Labels:
    """The labels of training and test samples, int64 [N, T], -1 for a token that does not count.

    Labels y [N, T] of samples x [N, T] are whole numbers from 0:

        -100 (as Hugging Face writes it) or -1   a token that does not count, such as padding
        only zeros and ones                      read as labels of tokens if `classes` names another number
                                                 than T of them, or if some token does not count; else as
                                                 one-hot rows, or several labels a sample

    name: name of the set, for messages. xs: the samples of both parts. ys: their labels, the second None
    without a test set. classes: names. Raises DataError (E404) for labels that cannot be read, and for those
    that repeat the samples.
    """
    parts = [_token_labels(name, array_of(y), x) for y, x in zip(ys, xs) if y is not None]
    blocks = ((y[rows], x[rows]) for y, x in zip(parts, xs) for rows in row_blocks(x.shape))
    if all(bool(((y == NO_LABEL) | (y == x)).all()) for y, x in blocks):
        text = "the label of every place is the token at that place; give the token that follows"
        raise DataError("E404", f"{name}: {text}: x = ids[:, :-1] and y = ids[:, 1:].")
    present = np.unique(np.concatenate([y[y != NO_LABEL] for y in parts]))
    top = max(int(y.max()) for y in parts)
    if classes is None and top + 1 > MOST_GAPS * len(present):
        text = f"only {len(present):,} different labels, but the largest is {top}"
        raise DataError("E404", f"{name}: {text}; give classes, such as the model's whole vocabulary.")
    names = tuple(map(str, range(top + 1) if classes is None else classes))
    notes: list[Note] = [("labels", f"a label for each of {parts[0].shape[1]} places of a sample")]
    if left_out := sum(int((y == NO_LABEL).sum()) for y in parts):
        notes.append(("labels", f"{quantity(left_out, 'place')} without a label, which count nowhere"))
    return Labels(parts[0], parts[1] if len(parts) > 1 else parts[0][:0], names, tuple(notes))


def _token_labels(name: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    if y.shape != x.shape or y.dtype.kind not in "iu":
        text = f"labels are {y.dtype} {list(y.shape)} for samples {list(x.shape)}"
        raise DataError("E404", f"{name}: {text}; give a whole number for every place of each sample.")
    y = np.where(y == IGNORE_INDEX, NO_LABEL, y).astype(np.int64)
    if len(nothing := np.flatnonzero((y == NO_LABEL).all(1))):
        fault = f"no place of sample {int(nothing[0])} has a label"
        raise DataError("E404", f"{name}: {fault}; leave the sample out.")
    return y


def read_multilabels(name: str, ys: tuple[Any, Any], names: Sequence[str]) -> Labels:
    """The labels of training and test samples, bool [N, L].

    name: name of the set. ys: labels of both parts, the second None without a test set. Raises DataError
    (E404) for anything but zeros and ones, and for another number of names.
    """
    y, *test = [_multilabel_array(name, array_of(part), names) for part in ys if part is not None]
    lacking = [names[i] for i in np.flatnonzero(~y.any(axis=0)).tolist()]
    texts = [f"{len(names)} labels, of which a sample has {y.sum(1).mean():.2f} on average"]
    texts += [f"no training sample has the label '{n}'" for n in lacking]
    notes: tuple[Note, ...] = tuple(("labels", text) for text in texts)
    return Labels(y, test[0] if test else y[:0], tuple(names), notes)


def _multilabel_array(name: str, y: np.ndarray, names: Sequence[str]) -> np.ndarray:
    if y.ndim != 2 or y.shape[1] != len(names):
        fault = f"labels are {y.dtype} {list(y.shape)}, and {len(names)} are named ({', '.join(names[:5])})"
        raise DataError("E404", f"{name}: {fault}; give one column for each, [N, {len(names)}].")
    if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
        row, column = np.argwhere(~np.isin(y, (0, 1)))[0].tolist()
        text = f"label '{names[column]}' of sample {row} is {y[row, column]}"
        raise DataError("E404", f"{name}: {text}; write 1 where it is there and 0 elsewhere.")
    return y.astype(bool)


def read_targets(name: str, ys: tuple[Any, Any], classes: Any, target: str | Target) -> Labels:
    """The targets of training and test samples, float64 [N], from arrays [N] or [N, 1]; or [N, K] of several.

    name: name of the set. ys: targets of both parts, the second None without a test set. target: its name, or
    the names of all, or a Target with constants.
    Raises DataError: E403 if classes are named too, E404 for anything but numbers.
    """
    if classes is not None:
        raise DataError("E403", f"{name}: classes name labels, and target a number; give one of them.")
    aim = Target(target) if isinstance(target, str) else target
    names = (aim.name,) if np.ndim(ys[0]) == 1 else split_names(aim.name)
    y, *test = [_target_numbers(name, array_of(part), len(names)) for part in ys if part is not None]
    y_test = test[0] if test else y[:0]
    check_targets(name, y, y_test, names)
    constants = "as given" if aim.given else "the mean and standard deviation of the training samples"
    kind = "is predicted as a number" if len(names) == 1 else "are predicted as numbers"
    note: Note = ("labels", f"'{', '.join(names)}' {kind}; center and scale are {constants}")
    return Labels(y, y_test, names, (note,), aim)


def are_several_numbers(ys: tuple[Any, Any]) -> bool:
    """Whether labels [N, K] are K numbers to predict, and not K labels that a sample may have: in training
    each column holds more than two different numbers. ys: as for `read_targets`."""
    y = array_of(ys[0])
    return y.dtype.kind in "iuf" and all(len(np.unique(column[np.isfinite(column)])) > 2 for column in y.T)


def _target_numbers(name: str, y: np.ndarray, count: int) -> np.ndarray:
    """float64 [N], or [N, K] of K targets."""
    if y.ndim == 2 and y.shape[1] == count == 1:
        y = y[:, 0]
    if y.dtype.kind == "O" and all(isinstance(v, int | float | np.number | None) for v in y.ravel()):
        y = y.astype(np.float64)  # None as NaN, which is refused by its row
    if y.ndim > 2 or y[:1].size > count or y.dtype.kind not in "biuf":
        fault = f"targets are {y.dtype} {list(y.shape)}"
        remedy = "a regression takes one number a sample, [N], or one for each name, target='a,b'"
        raise DataError("E404", f"{name}: {fault}; {remedy}.")
    return y.astype(np.float64)
