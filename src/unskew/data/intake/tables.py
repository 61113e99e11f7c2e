"""Tables of samples: a row each, a column of labels, perhaps a column that says where a row is from, and numbers.

    words in up to 20 kinds     a column of 0 and 1 for each kind (one column for two kinds)
    other words, numbers of rows  left out and told
    missing values              refused, with the line

Letters: N rows.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.from_arrays import arrays
from unskew.data.intake.columns import site_of
from unskew.data.intake.notes import Note, some
from unskew.errors import DataError, excerpt, suggestion

LABELS = ("label", "target", "class", "y", "category", "labels", "diagnosis", "outcome")
"""What a column of labels may be called, the likeliest first."""
ROW_NUMBERS = ("", "id", "index", "unnamed: 0", "row", "sample_id")
MOST_KINDS = 20
MISSING = ("", "na", "nan", "n/a", "null", "none", "?")


def read_csv(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV with a header line. The delimiter is a comma, semicolon or tab, whichever the header has most of.

    Raises DataError: E402 if there is no file, E401 for one that is no table.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            header, *rows = [row for row in csv.reader(file, delimiter=delimiter) if row] or [[]]
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError("E401", f"{path} cannot be read as a table with a header line: {error}.") from error
    names = [h.strip() for h in header]
    if not rows:
        raise DataError("E401", f"{path} holds no rows below its header line.")
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    for i, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise DataError("E401", f"{path} line {i} has {len(row)} values; the header has {len(names)}.")
    return {name: [row[j].strip() for row in rows] for j, name in enumerate(names)}


def csv_set(path: str | Path, label: str = "", site: str = "", classes: Sequence[str] | None = None) -> Dataset:
    """The set that a CSV holds; see `table`."""
    return table(read_csv(Path(path)), Path(path).name, label, site, classes)


def table(
    columns: Mapping[str, Any], name: str, label: str = "", site: str = "", classes: Sequence[str] | None = None
) -> Dataset:
    """A set from columns of equal length, [N] each.

    label: the column of labels, by default one of a usual name, else the last. site: the column that says where rows are
    from, by which the set is then divided; by default one of a usual name, if there is one. A column `split` of train and test divides the rows.
    Raises DataError: E403 for columns that are not there, E404 for labels, E405 for missing values.
    """
    facts = {str(c): v if isinstance(v, np.ndarray) else np.asarray(v) for c, v in columns.items()}
    if not facts:
        raise DataError("E403", f"{name} has no columns.")
    label = column_named(facts, label, name) if label else label_of(facts) or list(facts)[-1]
    y = facts.pop(label)
    named, site = bool(site), column_named(facts, site, name) if site else site_of(facts)
    sites = facts.pop(site) if site else None
    split = next((c for c in facts if c.lower() == "split" and facts[c].dtype.kind in "OUS"), "")
    test = np.char.lower(facts.pop(split).astype(str)) == "test" if split else np.zeros(len(y), dtype=bool)
    notes: list[Note] = [("labels", f"from the column '{label}'")]
    x = _numbers(facts, name, notes)
    if sites is not None:
        notes.append(("sites", f"from the column '{site}'"))
    places = {} if sites is None else {site: sites}
    parts = (x[~test], y[~test], x[test], y[test]) if test.any() else (x, y)
    dataset = arrays(
        *parts, classes=classes, name=Path(name).stem, notes=notes,
        columns={c: v[~test] for c, v in places.items()},
        test_columns={c: v[test] for c, v in places.items()} if test.any() else None,
    )  # fmt: skip
    return replace(dataset, intake=replace(dataset.intake, divided=site)) if named and dataset.intake else dataset


def label_of(columns: Mapping[str, Any]) -> str:
    """The column that usual names say holds the labels, "" if none does."""
    lower = {c.lower(): c for c in columns}
    return next((lower[n] for n in LABELS if n in lower), "")


def column_named(columns: Mapping[str, Any], column: str, name: str) -> str:
    """The column itself. Raises DataError (E403) if there is none of this name."""
    if column not in columns:
        known = some(list(map(str, columns)), 12)
        raise DataError("E403", f"{name} has no column '{column}'; it has: {known}.{suggestion(column, columns)}")
    return column


def _numbers(facts: Mapping[str, np.ndarray], name: str, notes: list[Note]) -> np.ndarray:
    """The columns as numbers, float32 [N, columns]."""
    kept: list[np.ndarray] = []
    left_out: list[str] = []
    spread: list[str] = []
    for column, values in facts.items():
        if column.lower() in ROW_NUMBERS and len(set(values.tolist())) == len(values):
            left_out.append(f"'{column}' (numbers of rows)")
        elif (numbers := _as_numbers(values, column, name)) is not None:
            kept.append(numbers)
        else:
            kinds = sorted({str(v) for v in values.tolist()})
            if len(kinds) > MOST_KINDS:
                left_out.append(f"'{column}' ({len(kinds):,} different words)")
                continue
            spread.append(f"'{column}' ({len(kinds)} kinds)")
            kept += [values.astype(str) == kind for kind in (kinds[1:] if len(kinds) == 2 else kinds)]
    if left_out:
        notes.append(("left out", f"columns {some(left_out, 5)}"))
    if spread:
        notes.append(("note", f"words became columns of 0 and 1: {some(spread, 5)}"))
    if not kept:
        raise DataError("E403", f"{name} has no column of numbers beside its labels.")
    return np.stack([np.asarray(v, dtype=np.float64) for v in kept], axis=1).astype(np.float32)


def _as_numbers(values: np.ndarray, column: str, name: str) -> np.ndarray | None:
    """float64 [N], or None for a column of words. Raises DataError (E405) for one with missing values."""
    if values.dtype.kind in "biuf":
        missing = ~np.isfinite(values.astype(np.float64))
    elif values.dtype.kind in "OUS":
        missing = np.array(
            [v is None or v != v or str(v).strip().lower() in MISSING for v in values.tolist()], dtype=bool
        )
    else:
        return None
    filled = values[~missing]
    try:
        numbers = filled.astype(np.float64)
    except (ValueError, TypeError):
        numbers = None
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(
            "E405",
            f"{name}: column '{column}' has no value in row {row} ({int(missing.sum()):,} are missing); fill it, or leave "
            "these rows or the column out.",
        )
    return numbers


def parquet_set(path: str | Path, label: str = "", site: str = "") -> Dataset:
    """The set that a Parquet file holds; see `table`. Raises DataError (E401) where it, or pyarrow, is not to be had."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            "E401", f"reading {path} needs pyarrow; pip install pyarrow, or save the table as CSV."
        ) from None
    try:
        columns = parquet.read_table(path).to_pydict()
    except Exception as error:  # pyarrow raises many kinds of error for damaged files
        raise DataError("E401", f"{path} cannot be read as Parquet: {' '.join(str(error).split())}.") from error
    return table({n: np.array(v) for n, v in columns.items()}, Path(path).name, label, site)
