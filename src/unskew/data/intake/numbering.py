"""Sets that number their classes differently, as folders do of which one lacks a class: labels are matched by the classes' names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from unskew.data.convert import array_of
from unskew.data.intake.notes import some
from unskew.errors import DataError, excerpt

Names = tuple[str, ...]


def given_names(given: Any) -> Names | None:
    """The names of all classes as they are given beside arrays, in a list, a tuple or an array; None for None.

    Raises DataError (E404) for what is no list.
    """
    if given is None:
        return None
    if not isinstance(given, Iterable):
        raise DataError(
            "E404", f"classes lists the names of all classes, such as ['cat', 'dog']; it is {excerpt(given)}."
        )
    return tuple(str(name) for name in given)


def names_of(items: Any) -> Any:
    """What a set, or the set below it, calls its classes; of joined sets what all of them do; None where nothing says."""
    while items is not None:
        if (names := getattr(items, "classes", None)) is not None:
            return names
        if parts := _parts(items):
            known = [names_of(part) for part in parts]
            return known[0] if all(_are_names(one) and list(one) == list(known[0]) for one in known) else None
        items = getattr(items, "dataset", None)
    return None


def unlike_parts(items: Any) -> str:
    """What to say of joined sets whose labels may mean different classes, "" of any other."""
    while items is not None and not _parts(items):
        items = getattr(items, "dataset", None)
    known = [names for part in _parts(items) if _are_names(names := names_of(part))]
    other = next((names for names in known if list(names) != list(known[0])), None)
    if other is None:
        return ""
    one, two = (some(list(map(str, names)), 5) for names in (known[0], other))
    return f"joined sets number their classes differently ({one}; {two}): does a label mean the same in all of them?"


def common(known: Sequence[tuple[str, Names]]) -> Names | None:
    """All names of classes, those of the first set first; None where all sets have the same. known: (set, its names).

    Raises DataError (E404) where a name stands twice in one of several unequal lists.
    """
    lists = list(dict.fromkeys(names for _, names in known))
    if len(lists) < 2:
        return None
    for of, names in known:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            text = f"the classes of {excerpt(of)} and of others differ, and two of them are called {excerpt(twice[0])}"
            raise DataError("E404", f"{text}; give all sets the same classes.")
    return tuple(dict.fromkeys(name for names in lists for name in names))


def renumbered(y: Any, names: Names, among: Sequence[str], of: str) -> Any:
    """Whole numbers of classes, or one-hot rows, as those of the same names in a longer list; words unchanged.

    of: the name of the set, for messages. Raises DataError (E404) for a number without a name.
    """
    values = array_of(y)
    columns = np.array([{name: i for i, name in enumerate(among)}[name] for name in names], np.int64)
    if values.ndim == 2 and values.shape[1:] == columns.shape and np.isin(values, (0, 1)).all():
        rows = np.zeros((len(values), len(among)), values.dtype)
        rows[:, columns] = values
        return rows
    if values.ndim > 1:
        raise DataError("E404", f"the classes of {excerpt(of)} and of others differ; give all sets the same classes.")
    if values.dtype.kind not in "biuf" or (values != np.round(values)).any():
        return y
    wrong = np.flatnonzero((values < 0) | (values >= len(names)))
    if len(wrong):
        text = f"the label of sample {wrong[0]} of {excerpt(of)} is {values[wrong[0]]:g}"
        raise DataError("E404", f"{text}; its {len(names)} classes need labels from 0 to {len(names) - 1}.")
    return columns[values.astype(np.int64)]


def _parts(items: Any) -> list[Any]:
    """The sets that a set joins, [] of any other."""
    parts = getattr(items, "datasets", None)
    return list(parts) if isinstance(parts, list | tuple) else []


def _are_names(names: Any) -> bool:
    return isinstance(names, list | tuple)
