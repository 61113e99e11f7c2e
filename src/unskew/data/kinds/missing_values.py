"""Cells of a table without a value: refused by default, or filled where the table is read.

    median       numbers: the median of the training rows of the same site; words: a kind of their own
    indicator    the same, and for each column of numbers a further one that is 1 where a value is missing

A site fills its cells from its own rows, so no statistic leaves it. A table to be predicted is filled with
the medians of all training rows that were read together, which `Intake.form` holds; those of a site stay in
the site's own runs. Rows are for training unless the table says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.kinds.features import column_of_numbers, is_row_number
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError, excerpt

MissingSetting: TypeAlias = Literal["refuse", "median", "indicator"]
WORD = "missing"
"""The word of cells without one."""
MOST_LISTED = 8


def indicator_name(column: str) -> str:
    """The name of the column that marks the missing values of another."""
    return f"{column} is missing"


def check_complete(sheet: Sheet, columns: Mapping[str, np.ndarray]) -> None:
    """Raises DataError (E405) that lists all columns with missing values, except those that number the
    rows."""
    incomplete: dict[str, np.ndarray] = {}
    for column in columns:
        missing = cells.missing(columns[column])
        if missing.any() and not is_row_number(column, columns[column]):
            incomplete[column] = missing
    if not incomplete:
        return
    listed = [_gaps_text(sheet, column, gaps) for column, gaps in incomplete.items()]
    raise DataError(
        "E405",
        f"{sheet.name} has no value in some cells of {quantity(len(listed), 'column')}:"
        f" {abbreviate(listed, MOST_LISTED)}. Fill them with FILE(missing=median) or FILE(missing=indicator),"
        f" or leave columns out, FILE(drop='{next(iter(incomplete))}').",
    )


def _gaps_text(sheet: Sheet, column: str, gaps: np.ndarray) -> str:
    first = sheet.where(int(np.argmax(gaps)))
    return f"{excerpt(column, 40)} ({int(gaps.sum()):,} of {len(gaps):,}, first {first})"


def fill(
    sheet: Sheet,
    columns: Mapping[str, np.ndarray],
    how: MissingSetting,
    sites: np.ndarray | None,
    notes: list[Note],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """(the columns without missing values, the median of each column of numbers over all training rows); adds
    to the notes.

    columns: of features. sites: the site of each row, None for one site. Raises DataError (E405) for mistaken
    numbers.
    """
    rows = next(iter(columns.values()), np.zeros(0))
    train = np.ones(len(rows), bool)
    for part in (sheet.test, sheet.unused):
        train &= True if part is None else ~part
    filled: dict[str, np.ndarray] = {}
    medians: dict[str, float] = {}
    counts: list[str] = []
    for column, values in columns.items():
        missing = cells.missing(values)
        if is_row_number(column, values):
            filled[column] = values
            continue
        numbers = _numbers(sheet, column, values, missing)
        if missing.any():
            counts.append(f"'{column}' ({int(missing.sum()):,})")
        if numbers is None:
            filled[column] = np.where(missing, WORD, cells.words(values)) if missing.any() else values
            continue
        medians[column] = _median(numbers[train])
        filled[column] = _with_medians(numbers, train, sites) if missing.any() else numbers
        if how == "indicator":
            filled[indicator_name(column)] = missing.astype(np.float64)
    if counts:
        whose = "the median of its site" if sites is not None else "the median"
        notes.append(("note", f"missing numbers with {whose}, words as a kind: {abbreviate(counts, 5)}"))
    return filled, medians


def fill_as(sheet: Sheet, form: Mapping[str, Any]) -> Sheet:
    """A table to be predicted, filled as the training rows of `form` (Intake.form) were; as it is if they
    were complete."""
    if "missing" not in form:
        return sheet
    filled = dict(sheet.columns)
    kinds = dict(form["columns"])
    for column in [c for c in kinds if c in sheet.columns]:
        values = sheet.columns[column]
        missing = cells.missing(values)
        if kinds[column]:
            filled[column] = np.where(missing, WORD, cells.words(values))
        elif (numbers := _numbers(sheet, column, values, missing)) is not None:
            filled[column] = np.where(missing, form["missing"].get(column, 0.0), numbers)
            filled[indicator_name(column)] = missing.astype(np.float64)
    return replace(sheet, columns=filled)


def _numbers(sheet: Sheet, column: str, values: np.ndarray, missing: np.ndarray) -> np.ndarray | None:
    """The numbers of a column, float64 [N] with NaN for missing ones; None for a column of words."""
    if missing.all():
        return np.full(len(values), np.nan)
    places = sheet.places or [f"row {row}" for row in range(len(values))]
    present = replace(sheet, places=[place for place, gone in zip(places, missing) if not gone])
    known = column_of_numbers(present, column, values[~missing])
    if known is None:
        return None
    numbers = np.full(len(values), np.nan)
    numbers[~missing] = known
    return numbers


def _with_medians(numbers: np.ndarray, train: np.ndarray, sites: np.ndarray | None) -> np.ndarray:
    """The numbers with the median of the training rows of its site in place of each NaN."""
    filled = numbers.copy()
    for site in [None] if sites is None else np.unique(sites.astype(str)):
        here = np.ones(len(numbers), bool) if site is None or sites is None else sites.astype(str) == site
        filled[here & np.isnan(numbers)] = _median(numbers[here & train])
    return filled


def _median(numbers: np.ndarray) -> float:
    """The median of the numbers that are there; 0 without any."""
    known = numbers[~np.isnan(numbers)]
    return float(np.median(known)) if len(known) else 0.0
