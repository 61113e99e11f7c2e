"""A site's own data, from the location that its operator names, with labels under the class names of the
study.

The data come from any source of `unskew.data.read`, or from a Python function. Only the site's operator names
it, on the site's own command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew import data
from unskew.data.python_objects import take
from unskew.data.registry import is_place
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UnskewError, UsageError, excerpt
from unskew.system import python_files


def rename_classes(dataset: Dataset, classes: tuple[str, ...], text: str) -> Dataset:
    """The set with these classes. text: name of the set.

    Labels that are names keep them. Labels that are numbers become indices of classes only if their first
    number is certain: a site need not have samples of each class, so labels 1 and 2 may be the last two of
    three classes or the first two.

    Raises DataError (E404) if labels and classes do not fit, or fit in two ways.
    """
    if classes == dataset.classes:
        return dataset
    used = _used_classes(dataset)
    if all(dataset.classes[i] in classes for i in used):
        return _relabel(dataset, {i: classes.index(dataset.classes[i]) for i in used}, classes)
    unknown = next(dataset.classes[i] for i in used if dataset.classes[i] not in classes)
    if dataset.y.ndim > 1:  # of masks and tokens, numbers count from 0
        if (count := len(dataset.classes)) > len(classes):
            raise DataError("E404", f"{text} holds {count} classes; --classes names {len(classes)}.")
        return replace(dataset, classes=classes)
    if not all(_is_number(dataset.classes[i]) for i in used):
        raise DataError("E404", f"{text} holds the class '{unknown}', which --classes does not name.")
    return _relabel(dataset, _number_places(dataset, used, classes, text), classes)


def _used_classes(dataset: Dataset) -> list[int]:
    if dataset.y.ndim > 1 or not (dataset.intake and dataset.intake.unnamed):
        return list(range(len(dataset.classes)))
    return np.unique(np.concatenate([dataset.y, dataset.y_test])).tolist()


def _number_places(
    dataset: Dataset, used: Sequence[int], classes: tuple[str, ...], text: str
) -> dict[int, int]:
    """The index of each class that is a number. Raises DataError (E404)."""
    numbers, C = {i: int(dataset.classes[i]) for i in used}, len(classes)
    low, high = min(numbers.values()), max(numbers.values())
    has_names = not (dataset.intake and dataset.intake.unnamed)
    if has_names and len(numbers) == C:  # all of them, in their order
        return {i: place for place, i in enumerate(sorted(used, key=numbers.__getitem__))}
    if low > 0 and high < C:
        ways = f"'{classes[low]}' if labels count from 0, '{classes[low - 1]}' if from 1"
        remedy = "write the names in place of the numbers (in an .npz, give them as the array 'classes')"
        text = f"{text} holds no label 0 and none above {high} of {C} classes, so its label {low} is {ways}"
        raise DataError("E404", f"{text}; {remedy}.")
    first = 0 if low == 0 else 1
    if high - first >= C:
        span = f"{first} to {C - 1 + first}"
        text = f"{text} holds the label {high}; --classes names {C}, which are labels {span}."
        raise DataError("E404", text)
    return {i: number - first for i, number in numbers.items()}


def _relabel(dataset: Dataset, place: dict[int, int], classes: tuple[str, ...]) -> Dataset:
    """The set with labels mapped to these classes. place: new index by old index."""
    places = np.array([place.get(i, -1) for i in range(len(dataset.classes))])
    y, y_test = (
        np.where(labels < 0, labels, places[labels]).astype(labels.dtype)
        for labels in (dataset.y, dataset.y_test)
    )
    return replace(dataset, y=y, y_test=y_test, classes=classes)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def load(text: str, classes: Sequence[str] = ()) -> Dataset:
    """Load `folder/`, `file.npz`, `file.csv`, `shards/*.parquet` or `file.py:function`, which returns any
    input of `unskew.data.take`.

    classes: all class names, in the order on which the sites have agreed; a site need not have samples of
    each. Raises DataError for data that cannot be trained on, UsageError (E111) for a loader that does not
    exist.
    """
    if ".py:" in text:
        dataset = _from_python(text)
    elif is_place(text):
        dataset = data.read(text)
    else:
        form = "a folder, an .npz, .csv or .parquet file, or FILE.py:FUNCTION that exists"
        raise UsageError("E111", f"--data takes {form}; got {excerpt(text)}.")
    if dataset.several and classes and tuple(classes) != dataset.classes:
        names, labels = ",".join(classes), ",".join(dataset.classes)
        text = f"{text} has the labels {labels}, in this order, and --classes names {names}"
        raise DataError("E404", f"{text}; name the same.")
    if dataset.several:
        return dataset
    if dataset.target and classes:
        remedy = "leave --classes out"
        raise DataError("E404", f"{text} has a number to predict, and --classes names classes; {remedy}.")
    if dataset.target and not dataset.target.given:
        rule = "every site learns (y - center) / scale with the same numbers, which this one does not name"
        center, scale = ([n] * len(dataset.classes) for n in (100, 50))
        constants = f"center={center},scale={scale}" if len(center) > 1 else "center=100,scale=50"
        name = dataset.target.name if len(center) == 1 else repr(dataset.target.name)
        example = f"target={name},{constants} in the brackets behind the path"
        raise DataError("E404", f"{text}: {rule}; agree on them, such as {example}.")
    if dataset.target:
        return dataset
    if not classes and len(dataset.classes) < 2:
        remedy = "name all classes of the study, as every site does: --classes a,b"
        text = f"{text} holds samples of one class; {remedy} (in an .npz: the array 'classes')."
        raise DataError("E404", text)
    return rename_classes(dataset, tuple(classes), text) if classes else dataset


def load_or_take(given: Any, classes: Sequence[str] = ()) -> Dataset:
    """A site's own set, an object or text for `load`. Raises as `load`, DataError (E403) for others."""
    if isinstance(given, Path | str):
        return load(str(given), classes)
    dataset = take(given)
    if not isinstance(dataset, Dataset):
        raise DataError("E403", "a Federation was given; a site is one client, so give its own set.")
    return rename_classes(dataset, tuple(classes), "the data") if classes else dataset


def _from_python(text: str) -> Dataset:
    file, _, name = text.rpartition(":")
    function = getattr(python_files.import_file(file), name, None)
    if not callable(function):
        raise UsageError("E111", f"{file} has no function '{name}'.")
    try:
        samples = function()
    except UnskewError:
        raise
    except Exception as error:  # the operator reads one sentence for any error of a loader
        line = python_files.line_note(file, error)
        raise DataError("E401", f"{text} failed{line}: {type(error).__name__}: {error}") from error
    if isinstance(samples, str | list):
        raise DataError("E403", f"{text} should return a Dataset, (x, y) or (x, y, x_test, y_test).")
    dataset = take(samples)
    if not isinstance(dataset, Dataset):
        raise DataError("E403", f"{text} returned a Federation; a site is one client, so return its own set.")
    return replace(dataset, name=Path(file).stem)
