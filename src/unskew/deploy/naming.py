"""A site's labels under the class names on which all sites have agreed.

By name where the site's labels are names. Numbers are names' places only if it is certain from where they count: a site
need not hold samples of each class, so labels 1 and 2 may be the last two of three classes or the first two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unskew.data.dataset import Dataset
from unskew.errors import DataError


def renamed(dataset: Dataset, classes: tuple[str, ...], text: str) -> Dataset:
    """The set with these classes. text: what the set is called. Raises DataError (E404) where labels and classes do not fit,
    or may fit in two ways."""
    if classes == dataset.classes:
        return dataset
    held = _held(dataset)
    if all(dataset.classes[i] in classes for i in held):
        return _placed(dataset, {i: classes.index(dataset.classes[i]) for i in held}, classes)
    unknown = next(dataset.classes[i] for i in held if dataset.classes[i] not in classes)
    if dataset.y.ndim > 1:  # of masks and tokens, numbers count from 0
        if len(classes) < len(dataset.classes):
            raise DataError("E404", f"{text} holds {len(dataset.classes)} classes; --classes names {len(classes)}.")
        return replace(dataset, classes=classes)
    if not all(_is_number(dataset.classes[i]) for i in held):
        raise DataError("E404", f"{text} holds the class '{unknown}', which --classes does not name.")
    return _placed(dataset, _counted(dataset, held, classes, text), classes)


def _held(dataset: Dataset) -> list[int]:
    """The classes that count: those that somebody has named; of numbers that nobody has, those that occur."""
    if dataset.y.ndim > 1 or not (dataset.intake and dataset.intake.unnamed):
        return list(range(len(dataset.classes)))
    return np.unique(np.concatenate([dataset.y, dataset.y_test])).tolist()


def _counted(dataset: Dataset, held: Sequence[int], classes: tuple[str, ...], text: str) -> dict[int, int]:
    """The place of each class that is a number. Raises DataError (E404)."""
    numbers, C = {i: int(dataset.classes[i]) for i in held}, len(classes)
    low, high = min(numbers.values()), max(numbers.values())
    named = not (dataset.intake and dataset.intake.unnamed)
    if named and len(numbers) == C:  # all of them, in their order
        return {i: place for place, i in enumerate(sorted(held, key=numbers.__getitem__))}
    if low > 0 and high < C:
        ways = f"'{classes[low]}' if labels count from 0, '{classes[low - 1]}' if from 1"
        remedy = "write the names in place of the numbers (in an .npz, give them as the array 'classes')"
        raise DataError(
            "E404",
            f"{text} holds no label 0 and none above {high} of {C} classes, so its label {low} is {ways}; {remedy}.",
        )
    first = 0 if low == 0 else 1
    if high - first >= C:
        span = f"{first} to {C - 1 + first}"
        raise DataError("E404", f"{text} holds the label {high}; --classes names {C}, which are labels {span}.")
    return {i: number - first for i, number in numbers.items()}


def _placed(dataset: Dataset, place: dict[int, int], classes: tuple[str, ...]) -> Dataset:
    """The set whose class i is at its place among these classes."""
    places = np.array([place.get(i, -1) for i in range(len(dataset.classes))])
    y, y_test = (
        np.where(labels < 0, labels, places[labels]).astype(labels.dtype) for labels in (dataset.y, dataset.y_test)
    )
    return replace(dataset, y=y, y_test=y_test, classes=classes)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
