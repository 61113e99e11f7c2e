"""Cells of a table without a value, filled where the table is read; by default they are refused.

    median       numbers: the median of the training rows of the same site; words: a kind of their own
    indicator    the same, and for each column of numbers a further one that is 1 where a value is missing

A site fills its cells from its own rows, so no statistic leaves it. A table to be predicted is filled with
the medians of all training rows that were read together, which `Intake.form` holds; those of a site stay in
the site's own runs. Rows are for training unless the table says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.kinds.features import ColumnFault, check_faults, numbers_between_gaps, numbers_rows
from unskew.data.samples.reading_notes import Note, abbreviate

MissingSetting: TypeAlias = Literal["refuse", "median", "indicator"]
WORD = "missing"
"""The word of cells without one."""


def indicator_name(column: str) -> str:
    """The name of the column that marks the missing values of another."""
    return f"{column} is missing"


@dataclass(frozen=True)
class Filled:
    """Columns without missing values. medians: of each column of numbers over all training rows. gaps: by
    column and site, the number of missing values; the site is "" without sites."""

    columns: Mapping[str, np.ndarray]
    medians: Mapping[str, float]
    gaps: Mapping[str, Mapping[str, int]]


def fill(
    sheet: Sheet,
    columns: Mapping[str, np.ndarray],
    how: MissingSetting,
    sites: np.ndarray | None,
    notes: list[Note],
) -> Filled:
    """The columns of features, filled; adds to the notes.

    sites: the site of each row, None for one site. Raises DataError (E405) that lists all columns with
    mistaken numbers.
    """
    rows = len(next(iter(columns.values()), ()))
    train = np.ones(rows, bool)
    for part in (sheet.test, sheet.unused):
        train &= True if part is None else ~part
    site_of = np.full(rows, "") if sites is None else cells.words(sites)
    filled: dict[str, np.ndarray] = {}
    medians: dict[str, float] = {}
    gaps: dict[str, dict[str, int]] = {}
    faults: list[ColumnFault] = []
    for column, values in columns.items():
        if numbers_rows(sheet, column, values):
            filled[column] = values
            continue
        missing = cells.missing(values)
        try:
            numbers = numbers_between_gaps(sheet, column, values, missing)
        except ColumnFault as fault:
            faults.append(fault)
            continue
        if missing.any():
            names, counts = np.unique(site_of[missing], return_counts=True)
            gaps[column] = dict(zip(names.tolist(), counts.tolist()))
        if numbers is None:
            filled[column] = np.where(missing, WORD, cells.words(values)) if missing.any() else values
            continue
        medians[column] = _median(numbers[train])
        filled[column] = _with_medians(numbers, train, site_of) if missing.any() else numbers
        if how == "indicator":
            filled[indicator_name(column)] = missing.astype(np.float64)
    check_faults(sheet, faults)
    if gaps:
        source = "the median" if sites is None else "the median of its site"
        counts = [f"'{column}' ({sum(of_site.values()):,})" for column, of_site in gaps.items()]
        notes.append(("note", f"missing numbers with {source}, words as a kind: {abbreviate(counts, 5)}"))
    return Filled(filled, medians, gaps)


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
        elif (numbers := numbers_between_gaps(sheet, column, values, missing)) is not None:
            filled[column] = np.where(missing, form["missing"].get(column, 0.0), numbers)
            filled[indicator_name(column)] = missing.astype(np.float64)
    return replace(sheet, columns=filled)


def _with_medians(numbers: np.ndarray, train: np.ndarray, site_of: np.ndarray) -> np.ndarray:
    """The numbers with the median of the training rows of its site in place of each NaN."""
    filled = numbers.copy()
    for site in np.unique(site_of):
        here = site_of == site
        filled[here & np.isnan(numbers)] = _median(numbers[here & train])
    return filled


def _median(numbers: np.ndarray) -> float:
    """The median of the numbers that are there; 0 without any."""
    known = numbers[~np.isnan(numbers)]
    return float(np.median(known)) if len(known) else 0.0
