"""A site's own data, from where its operator says: a folder of images, an .npz, a .csv, or a few lines of Python.

The loader is named by the site's operator on the site's own command line, never by the coordinator.
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


def load(text: str, classes: Sequence[str] = ()) -> Dataset:
    """`folder/`, `file.npz`, `file.csv` or `file.py:function`, which returns a Dataset, (x, y) or (x, y, x_test, y_test).

    classes: all class names, in the order that every site has agreed on; a site need not hold samples of each.
    Raises DataError for data that cannot be trained on, UsageError (E111) for a loader that is not there.
    """
    path = Path(text)
    if path.is_dir():
        found = _folder(path, classes)
    elif path.suffix == ".npz":
        found = data.npz(path)
    elif path.suffix == ".csv":
        found = _csv(path, classes)
    elif ".py:" in text:
        found = _from_python(text, classes)
    else:
        raise UsageError("E111", f"--data should be a folder, an .npz, a .csv or FILE.py:FUNCTION; got '{text}'.")
    if not classes and len(found.classes) < 2:
        text = f"{text} holds samples of one class; name all classes of the study, as every site does: --classes a,b"
        raise DataError("E404", f"{text} (in an .npz: the array 'classes').")
    if not classes or tuple(classes) == found.classes:
        return found
    if len(classes) < len(found.classes):
        raise DataError("E404", f"{text} holds {len(found.classes)} classes; --classes names {len(classes)}.")
    return replace(found, classes=tuple(classes))


def _folder(path: Path, classes: Sequence[str]) -> Dataset:
    """Class folders by name; a class without samples here has no folder, or an empty one."""
    found = data.folder(path)
    if not classes:
        return found
    unknown = [c for c in found.classes if c not in classes]
    if unknown:
        raise DataError("E409", f"{path} has a folder '{unknown[0]}', which --classes does not name.")
    place = np.array([list(classes).index(c) for c in found.classes])
    return replace(found, y=place[found.y], y_test=place[found.y_test], classes=tuple(classes))


def _csv(path: Path, classes: Sequence[str]) -> Dataset:
    """A header line, numbers, and one column of labels named label, target, class or y (else the last)."""
    try:
        with open(path, newline="") as file:
            head, *rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError("E401", f"{path} cannot be read as a table with a header line: {error}.") from error
    names = [h.strip().lower() for h in head]
    at = next((names.index(n) for n in LABELS if n in names), len(names) - 1)
    for i, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise DataError("E401", f"{path} line {i} has {len(row)} values; the header has {len(names)}.")
    told = [row[at].strip() for row in rows]
    known = list(classes) or sorted(set(told), key=lambda v: (len(v), v))
    if unknown := sorted(set(told) - set(known)):
        raise DataError("E404", f"{path} holds the label '{unknown[0]}', which --classes does not name.")
    try:
        x = np.array([[float(v) for j, v in enumerate(row) if j != at] for row in rows], dtype=np.float32)
    except ValueError as error:
        raise DataError("E401", f"{path} holds something that is no number: {error}.") from error
    return data.arrays(x, np.array([known.index(v) for v in told], dtype=np.int64), classes=known, name=path.stem)


def _from_python(text: str, classes: Sequence[str]) -> Dataset:
    name, _, function = text.rpartition(":")
    make = getattr(own.module(name), function, None)
    if not callable(make):
        raise UsageError("E111", f"{name} has no function '{function}'.")
    try:
        made = make()
    except UnskewError:
        raise
    except Exception as error:  # whatever a loader raises, its operator is to read one sentence
        raise DataError("E401", f"{text} failed{own.line(name, error)}: {type(error).__name__}: {error}") from error
    if isinstance(made, Dataset):
        return made
    if not isinstance(made, tuple) or len(made) not in (2, 4):
        raise DataError("E403", f"{text} should return a Dataset, (x, y) or (x, y, x_test, y_test).")
    return data.arrays(*made, classes=classes or None, name=Path(name).stem)
