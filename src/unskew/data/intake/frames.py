"""DataFrames of several parts or clients, read together: a column, and a word in it, means the same number in all of them.

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unskew.data.convert import array_of
from unskew.data.intake import cells
from unskew.data.intake.columns import site_of
from unskew.data.intake.features import Kinds, numbers_as, numbers_of
from unskew.data.intake.notes import Note, some
from unskew.data.intake.raw import Raw
from unskew.data.intake.sheets import Only, Sheet
from unskew.data.intake.tables import labels_in, sheet_raw, wished, with_split
from unskew.errors import DataError, excerpt

PLAIN = frozenset(("Value", "ClassLabel"))
"""Kinds of columns of Hugging Face's Datasets that hold one value a row."""


def is_frame(data: Any) -> bool:
    """Whether it is a table of columns: pandas' and polars' DataFrames, pyarrow's Tables, and those Datasets of Hugging Face
    whose columns all hold one value a row."""
    if hasattr(data, "columns") and any(hasattr(data, n) for n in ("iloc", "to_dicts", "to_pydict")):
        return True
    kinds = [type(feature).__name__ for feature in _features(data).values()]
    return len(kinds) > 1 and set(kinds) <= PLAIN and hasattr(data, "column_names") and hasattr(data, "__len__")


def columns_of(frame: Any, name: str = "table") -> dict[str, np.ndarray]:
    """The columns of a table by name, [N] each. name: of the table, for messages.

    Raises DataError (E403) for two columns of one name, and for cells that hold several values.
    """
    names = list(getattr(frame, "column_names", None) or frame.columns)
    words = [cells.word(column) for column in names]
    if twice := sorted({word for word in words if words.count(word) > 1}):
        raise DataError("E403", f"{name} has two columns called {excerpt(twice[0])}; give each a name of its own.")
    features = _features(frame)
    columns = {
        word: _in_words(_values(frame[column]), getattr(features.get(column), "names", None))
        for word, column in zip(words, names)
    }
    for column, values in columns.items():
        row = next((i for i, v in enumerate(values.tolist()) if np.ndim(v)), None) if values.dtype.kind == "O" else None
        if row is not None:
            text = f"{name}: column '{column}' holds several values in row {row}, {excerpt(values[row], 40)}"
            raise DataError("E403", f"{text}; give arrays (x, y), or a column for each.")
    return columns


def _features(data: Any) -> Mapping[str, Any]:
    """What a Dataset of Hugging Face says of each column; {} of anything else."""
    features = getattr(data, "features", None)
    return features if isinstance(features, Mapping) else {}


def _values(column: Any) -> np.ndarray:
    """A column as an array: what knows its categories or missing values gives objects."""
    return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)


def _in_words(values: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
    """The words that numbers stand for, None for a missing one; the values themselves where they have no names."""
    if not names:
        return values
    known = dict(enumerate(names))
    return np.array([None if v is None else known.get(int(v)) for v in values.tolist()], dtype=object)


def with_labels(x: Any, y: Any, name: str, label: str) -> dict[str, np.ndarray]:
    """The columns of a table and, as one more that is called so, its labels. name: of the table, for messages.

    Raises DataError (E403) for labels of another length or order, by pandas' index, and for a name that a column has.
    """
    columns = columns_of(x, name)
    index, other = getattr(x, "index", None), getattr(y, "index", None)
    if hasattr(index, "equals") and hasattr(other, "equals") and not index.equals(other):  # pyright: ignore[reportOptionalMemberAccess]
        text = "x and y have different indexes, so which label a row has cannot be told"
        raise DataError("E403", f"{name}: {text}; give y.loc[x.index], or y.to_numpy() if they are in one order.")
    labels = array_of(y)
    if label in columns or labels.ndim != 1 or len(labels) != len(next(iter(columns.values()), labels)):
        rows = len(next(iter(columns.values()), labels))
        text = (
            f"column '{label}' is in x, too"
            if label in columns
            else f"x has {rows} rows, and y is {list(labels.shape)}"
        )
        raise DataError("E403", f"{name}: {text}; give one label for each row.")
    return {**columns, label: labels}


def raws_of(tables: Mapping[str, Mapping[str, np.ndarray]], label: str, target: str = "") -> dict[str, Raw]:
    """The samples of each table, by its name, whose numbers mean the same columns and words in all of them.

    tables: their columns. label, target: the column of labels, or of the numbers to predict, as `table` has them.
    Raises DataError (E403) for a column that one table lacks, and as `table` does.
    """
    sheets = {name: Sheet(name, columns) for name, columns in tables.items()}
    whole, notes, aim = _joined(sheets), list[Note](), wished(target, label, None, None)
    labels, used = [""], Kinds()
    if len(sheets) > 1:
        divided = with_split(whole, label, [])
        labels = labels_in(divided, label, None, aim, [])[0]
        rest = [column for column in divided.columns if column not in labels]
        site = site_of(dict.fromkeys(rest))
        used = numbers_of(divided, Only(divided.columns, [c for c in rest if c != site]), notes)[1]

    def features(sheet: Sheet, columns: Mapping[str, np.ndarray], told_of: list[Note]) -> tuple[np.ndarray, Kinds]:
        if len(sheets) < 2:
            return numbers_of(sheet, columns, told_of)
        told_of += notes
        return numbers_as(sheet, used), used

    named = label if aim else label or labels[0]
    return {name: sheet_raw(sheet, (named, ""), None, aim, features) for name, sheet in sheets.items()}


def unlabelled(frame: Any, used: Iterable[tuple[str, list[str]]], name: str) -> np.ndarray:
    """float32 [N, columns] of a table from which a model predicts: columns are found by name, in whatever order they come.

    used: the columns that the model reads, with their words, as `Kinds` has them. Raises DataError as `numbers_as` does.
    """
    return numbers_as(Sheet(name, columns_of(frame, name)), dict(used))


def _joined(sheets: Mapping[str, Sheet]) -> Sheet:
    """The rows of all tables, with the columns of the first. Raises DataError (E403) for one that another lacks."""
    name, first = next(iter(sheets.items()))
    columns: dict[str, np.ndarray] = {}
    for column in first.columns:
        for other, sheet in sheets.items():
            if column not in sheet.columns:
                text = f"{excerpt(other)} has no column '{column}', which {excerpt(name)} has"
                raise DataError("E403", f"{text}; it has: {some(list(sheet.columns), 12)}.")
        columns[column] = _stacked([sheet.columns[column] for sheet in sheets.values()])
    places = [f"row {i} of {excerpt(name)}" for name, sheet in sheets.items() for i in range(_length(sheet))]
    return Sheet("table" if len(sheets) < 2 else f"the tables of {some(list(sheets))}", columns, places)


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    kinds = {part.dtype.kind for part in parts}
    return np.concatenate(parts if kinds <= {*"biuf"} or len(kinds) == 1 else [part.astype(object) for part in parts])


def _length(sheet: Sheet) -> int:
    return len(next(iter(sheet.columns.values()), ()))
