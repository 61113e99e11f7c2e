"""A data set from a folder or pattern of CSV files, of which each holds the rows of one site.

hospitals/north.csv, hospitals/south.csv      the sites north and south: hospitals, or hospitals/*.csv
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from unskew.data.files.cells import DecimalSetting, NumberFormat, ThousandsSetting
from unskew.data.files.sheets import Sheet, check_points, read_sheet
from unskew.data.files.tree import IMAGE_ENDINGS, PART_NAMES, SOUND_ENDINGS, VOLUME_ENDINGS, file_ending
from unskew.data.kinds.column_roles import site_column_in
from unskew.data.readers.from_tables import CSV_ENDINGS, sheet_set, table_ending, target_of
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.intake import Note, abbreviate
from unskew.errors import DataError

SITE_COLUMN = "site"
"""The column of the names of files."""


def site_tables(
    path: str | Path,
    label: str = "",
    site: str = "",
    classes: Sequence[str] | None = None,
    *,
    target: str = "",
    center: float | None = None,
    scale: float | None = None,
    decimal: DecimalSetting = "",
    thousands: ThousandsSetting = "",
    group: str = "",
) -> Dataset:
    """The set of all CSV files in a folder, or of those that a pattern matches: each file is a site, by its
    name.

    Columns that some files lack are left out, with a note. site: a column of sites in place of the files. See
    `read_table` for the other arguments. Raises DataError: E403 for columns, E405 for numbers in more than
    one format, and as `read_table` does.
    """
    files = table_files(Path(path))
    names = [file.name.partition(".")[0] for file in files]
    if part := next((name for name in names if name.lower() in PART_NAMES), ""):
        raise DataError(
            "E403",
            f"{path} holds a table called {part} among tables of sites; name it train, or as its site.",
        )
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise DataError("E403", f"{path} holds two tables of the site {twice}; leave one of them in it.")
    numbers = NumberFormat.from_settings(decimal, thousands)
    sheets = dict(zip(names, (read_sheet(file, numbers) for file in files)))
    notes = list[Note]()
    sheet = _join_sites(sheets, site, notes)
    aim = target_of(target, label, center, scale)
    dataset = sheet_set(sheet, (label, site or SITE_COLUMN, group), classes, aim).with_notes(*notes)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return replace(dataset, name=folder.resolve().name)


def table_files(path: Path) -> list[Path]:
    """The CSV files of a folder, or those that a pattern matches, without hidden ones; sorted by name."""
    files = path.iterdir() if path.is_dir() else path.parent.glob(path.name)
    return sorted(
        file
        for file in files
        if table_ending(file) in CSV_ENDINGS and not file.name.startswith(".") and file.is_file()
    )


def are_site_tables(path: Path) -> bool:
    """Whether a folder has CSV files, and neither images, sounds nor volumes that one might list, or a
    pattern matches some."""
    if not table_files(path):
        return False
    names = [name for _, _, names in os.walk(path) for name in names]
    return not any(
        file_ending(Path(name)) in IMAGE_ENDINGS | SOUND_ENDINGS | VOLUME_ENDINGS for name in names
    )


def _join_sites(sheets: Mapping[str, Sheet], site: str, notes: list[Note]) -> Sheet:
    """The rows of all sites with the columns that all have, and the column of sites; adds to the notes."""
    first = next(iter(sheets.values()))
    for sheet in sheets.values():
        for other in sheets.values():
            if sheet.decimal_commas and not other.decimal_commas:
                check_points(sheet, other)
    common = [c for c in first.columns if all(c in sheet.columns for sheet in sheets.values())]
    others = dict.fromkeys(c for sheet in sheets.values() for c in sheet.columns if c not in common)
    if not common:
        raise DataError(
            "E403",
            f"the tables {abbreviate(list(sheets), 5)} have no column in common; give them one header.",
        )
    for column in others:
        owners = [name for name, sheet in sheets.items() if column in sheet.columns]
        notes.append(("left out", f"column '{column}', which only {abbreviate(owners, 5)} {_has(owners)}"))
    columns = {c: np.concatenate([sheet.columns[c] for sheet in sheets.values()]) for c in common}
    if not site:
        names = np.repeat(list(sheets), [len(sheet.places) for sheet in sheets.values()])
        if (stated := site_column_in(columns)) and not np.array_equal(columns.pop(stated), names):
            notes.append(("left out", f"column '{stated}', because the names of files are the sites"))
        columns[SITE_COLUMN] = names
    places = tuple(f"{place} of {sheet.name}" for sheet in sheets.values() for place in sheet.places)
    return Sheet(
        "the tables of sites",
        columns,
        places,
        any(sheet.decimal_commas for sheet in sheets.values()),
        semicolons=any(sheet.semicolons for sheet in sheets.values()),
        numbers=first.numbers,
    )


def _has(owners: Sequence[str]) -> str:
    return "has" if len(owners) == 1 else "have"
