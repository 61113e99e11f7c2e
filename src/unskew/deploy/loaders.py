"""A site's own data, from where its operator says: a folder of images, an .npz, a .csv, or a few lines of Python.

The site's operator names the loader on the site's own command line; a coordinator cannot.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from unskew import data, own
from unskew.data.dataset import Dataset
from unskew.errors import DataError, UnskewError, UsageError

LABELS = ("label", "target", "class", "y")
"""What the column of labels in a .csv may be called."""


def load(text: str, classes: Sequence[str] = ()) -> Dataset:
    """`folder/`, `file.npz`, `file.csv` or `file.py:function`, which returns a Dataset, (x, y) or (x, y, x_test, y_test).

    classes: all class names, in the order on which the sites have agreed; a site need not hold samples of each.
    Raises DataError for data that cannot be trained on, UsageError (E111) for a loader that does not exist.
    """
    path = Path(text)
    if path.is_dir():
        dataset = _folder(path, classes)
    elif path.suffix == ".npz":
        dataset = data.npz(path)
    elif path.suffix == ".csv":
        dataset = _csv(path, classes)
    elif ".py:" in text:
        dataset = _from_python(text, classes)
    else:
        raise UsageError("E111", f"--data takes a folder, an .npz, a .csv or FILE.py:FUNCTION; got '{text}'.")
    if not classes and len(dataset.classes) < 2:
        text = f"{text} holds samples of one class; name all classes of the study, as every site does: --classes a,b"
        raise DataError("E404", f"{text} (in an .npz: the array 'classes').")
    if not classes or tuple(classes) == dataset.classes:
        return dataset
    if len(classes) < len(dataset.classes):
        raise DataError("E404", f"{text} holds {len(dataset.classes)} classes; --classes names {len(classes)}.")
    return replace(dataset, classes=tuple(classes))


def _folder(path: Path, classes: Sequence[str]) -> Dataset:
    """One folder of images a class, by name; a class without samples here has no folder, or an empty one."""
    dataset = data.folder(path)
    if not classes:
        return dataset
    unknown = [c for c in dataset.classes if c not in classes]
    if unknown:
        raise DataError("E409", f"{path} has a folder '{unknown[0]}', which --classes does not name.")
    place = np.array([list(classes).index(c) for c in dataset.classes])
    return replace(dataset, y=place[dataset.y], y_test=place[dataset.y_test], classes=tuple(classes))


def _csv(path: Path, classes: Sequence[str]) -> Dataset:
    """A header line, numbers, and a column of labels called label, target, class or y (else the last column)."""
    try:
        with open(path, newline="") as file:
            header, *rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError("E401", f"{path} cannot be read as a table with a header line: {error}.") from error
    columns = [h.strip().lower() for h in header]
    column = next((columns.index(n) for n in LABELS if n in columns), len(columns) - 1)
    for i, row in enumerate(rows, 2):
        if len(row) != len(columns):
            raise DataError("E401", f"{path} line {i} has {len(row)} values; the header has {len(columns)}.")
    labels = [row[column].strip() for row in rows]
    known = list(classes) or sorted(set(labels), key=lambda v: (len(v), v))
    if unknown := sorted(set(labels) - set(known)):
        raise DataError("E404", f"{path} holds the label '{unknown[0]}', which --classes does not name.")
    try:
        x = np.array([[float(v) for j, v in enumerate(row) if j != column] for row in rows], dtype=np.float32)
    except ValueError as error:
        raise DataError("E401", f"{path} holds a value that is not a number: {error}.") from error
    return data.arrays(x, np.array([known.index(v) for v in labels], dtype=np.int64), classes=known, name=path.stem)


def _from_python(text: str, classes: Sequence[str]) -> Dataset:
    file, _, name = text.rpartition(":")
    function = getattr(own.module(file), name, None)
    if not callable(function):
        raise UsageError("E111", f"{file} has no function '{name}'.")
    try:
        samples = function()
    except UnskewError:
        raise
    except Exception as error:  # whatever a loader raises, its operator reads one sentence
        raise DataError("E401", f"{text} failed{own.line(file, error)}: {type(error).__name__}: {error}") from error
    if isinstance(samples, Dataset):
        return samples
    if not isinstance(samples, tuple) or len(samples) not in (2, 4):
        raise DataError("E403", f"{text} should return a Dataset, (x, y) or (x, y, x_test, y_test).")
    return data.arrays(*samples, classes=classes or None, name=Path(file).stem)
