"""A table next to sounds or images that lists them by file name, with labels, sites and further columns.

Letters: N files.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet, read_csv
from unskew.data.files.tree import File, FolderTree
from unskew.data.kinds.class_folders import LabelledFiles
from unskew.data.kinds.column_roles import (
    column_named,
    label_column_in,
    part_column,
    site_column_in,
    site_column_of,
)
from unskew.data.kinds.features import encode_inputs, is_row_number
from unskew.data.kinds.labels import sort_classes
from unskew.data.readers.from_tables import check_sites, read_label_columns
from unskew.data.samples.dataset import Target
from unskew.data.samples.intake import Note, abbreviate, quantity
from unskew.errors import DataError, excerpt

LISTED_SHARE = 0.5
"""The share of a column's values that must be names of files for the column to count as file names."""


class FileNames:
    """Files by the names that a table may use: name or path, with or without the ending, in any case if
    that is unique."""

    def __init__(self, files: Sequence[File]):
        self.count, self._known = len(files), defaultdict[str, list[File]](list)
        for file in files:
            for name in {file.path.name, file.path.stem}:
                self._known[_plain_path(name)].append(file)

    def matches(self, text: str, folder: Path) -> list[File]:
        """The files that a text may name, of which those that fit best. folder: the table's folder."""
        parts = PurePosixPath(_plain_path(text)).parts
        matches = self._known.get(parts[-1], []) if parts else []
        text = unicodedata.normalize("NFC", text)
        fits: tuple[Callable[[File], int], ...] = (
            lambda file: _common_folders(file.path.parent, parts[:-1]),
            lambda file: _plain_path(file.path.name) == parts[-1],
            lambda file: text.endswith(unicodedata.normalize("NFC", file.path.name)),
            lambda file: file.path.is_relative_to(folder),
        )
        for fit in fits:
            if len(matches) > 1:
                best = max(map(fit, matches))
                matches = [file for file in matches if fit(file) == best]
        return matches


def _common_folders(folder: Path, names: tuple[str, ...]) -> int:
    """The number of these names, counted from the last, that equal the folder and the folders above it."""
    pairs = zip(reversed(folder.parts), reversed(names))
    return sum(1 for _ in takewhile(lambda pair: _plain_path(pair[0]) == pair[1], pairs))


def _plain_path(name: str) -> str:
    return unicodedata.normalize("NFC", name).replace("\\", "/").lower()


def file_column(sheet: Sheet, names: FileNames, excluded: set[str], folder: Path) -> str:
    """The column that names the most files, "" if none does. excluded: columns with another purpose."""
    largest, key = 0, ""
    for column, values in sheet.columns.items():
        paths = [file.path for v in values.tolist() for file in names.matches(v, folder)[:1]]
        if column not in excluded and len(paths) >= LISTED_SHARE * len(values) and len({*paths}) > largest:
            largest, key = len({*paths}), column
    return key


@dataclass(frozen=True)
class Listing:
    """A table and the files that its rows name.

    sheet: the rows that have a file, in the order of the files' paths, without the column `key` of names.
    files: the file of each row; rows may share one. notes: on rows without files and files without rows.
    """

    path: Path
    key: str
    sheet: Sheet
    files: tuple[File, ...]
    notes: tuple[Note, ...]


def find_listing(tree: FolderTree, files: Sequence[File], roles: Sequence[str] = ()) -> Listing | None:
    """The CSV below the folder that lists the files, None without one; of several, the one with all named
    columns.

    roles: columns that are named, which are not searched for names of files. Raises DataError (E404) if
    several CSVs are possible, and if a name may be that of several files.
    """
    names, listings = FileNames(files), list[tuple[Path, Sheet, str]]()
    for path in sorted(tree.root.rglob("*.csv")):
        sheet = read_csv(path)
        excluded = {*roles, label_column_in(sheet.columns), site_column_in(sheet.columns)}
        if key := file_column(sheet, names, excluded, path.parent):
            listings.append((path, sheet, key))
    named = {*roles} - {""}
    listings = [listing for listing in listings if named <= listing[1].columns.keys()] or listings
    if not listings:
        return None
    if len(listings) > 1:
        remedy = "put their rows into one table, with a column split of train and test where they are parts"
        raise DataError("E404", f"both {listings[0][0]} and {listings[1][0]} list files; {remedy}.")
    path, sheet, key = listings[0]
    file_of: dict[int, File] = {}
    for i, text in enumerate(sheet.columns[key].tolist()):
        matches = names.matches(text, path.parent)
        if len(matches) > 1:
            fault = f"{excerpt(text, 60)} {sheet.where(i)} of {path} may be {matches[0].path} or"
            remedy = f"write the path of each file, from {path.parent} on"
            raise DataError("E404", f"{fault} {matches[1].path}; {remedy}.")
        if matches:
            file_of[i] = matches[0]
    rows = sorted(file_of, key=lambda row: (file_of[row].path, row))
    columns = {name: values[rows] for name, values in sheet.columns.items() if name != key}
    notes = list[Note]()
    if n := len(sheet.places) - len(rows):
        notes.append(("left out", f"{quantity(n, 'row')} in {path.name} without a file"))
    if n := len(files) - len({file_of[row].path for row in rows}):
        notes.append(("left out", f"{quantity(n, 'file')} that {path.name} does not list"))
    with_files = replace(sheet, columns=columns, places=[sheet.places[row] for row in rows])
    return Listing(path, key, with_files, tuple(file_of[row] for row in rows), tuple(notes))


def read_listing(
    listing: Listing, roles: tuple[str, str, str], aim: Target | None = None, inputs: Sequence[str] = ()
) -> LabelledFiles:
    """The listed files with their labels, sites and further facts.

    roles: the columns of labels and sites, "" to search for usual names, and of groups.
    aim: the target, if one is named.
    inputs: columns that are inputs next to the file.
    Raises DataError: E404 if the labels cannot be identified and for a file in two rows that differ, E403 for
    columns that do not exist and for missing sites, E404 for labels, E405 for inputs with missing values.
    """
    name, (label, site, group) = listing.path.name, roles
    notes: list[Note] = [*listing.notes, ("labels", f"{name} lists the files, by '{listing.key}'")]
    if not (label or aim or label_column_in(listing.sheet.columns)):
        fault = "lists files, and no column is called label, class, category or target"
        names = abbreviate(list(listing.sheet.columns), 12)
        raise DataError("E404", f"{listing.path} {fault}; it has: {names}. Name it: label=COLUMN.")
    sheet, files = _drop_validation(listing, label, notes)
    labels, y = read_label_columns(sheet, label, None, aim, notes)
    remaining = [column for column in sheet.columns if column not in labels]
    site = site_column_of(sheet, remaining, site, group)
    sites = check_sites(sheet, site).astype(str) if site else None
    further = [column_named(remaining, name, sheet.name) for name in inputs]
    input_values, used = encode_inputs(sheet, further, notes)
    facts = [
        y,
        np.array([f.part for f in files]),
        *([] if sites is None else [sites]),
        *input_values.values(),
    ]
    rows = _first_rows(listing.path, sheet, files, facts)
    if n := len(files) - len(rows):
        notes.append(("left out", f"{quantity(n, 'row')} in {name} that list a file again"))
    classes, y = (), y[rows]
    if y.dtype.kind in "OUS":
        classes = sort_classes(set(map(str, y.tolist())))
        y = np.array([classes.index(str(word)) for word in y.tolist()], dtype=np.int64)
    columns = {column: sheet.columns[column][rows] for column in remaining if column != "site"}
    # clients can be formed by columns that have no missing values and do not number the files
    of_clients = {
        column: values
        for column, values in columns.items()
        if column == group or not (cells.missing(values).any() or is_row_number(column, values))
    }
    return LabelledFiles(
        tuple(files[row] for row in rows),
        classes,
        y,
        None if sites is None else tuple(sites[rows].tolist()),
        tuple(notes),
        facts=of_clients,
        target=aim,
        beside={column: values[rows] for column, values in input_values.items()},
        used=used,
    )


def _drop_validation(listing: Listing, label: str, notes: list[Note]) -> tuple[Sheet, list[File]]:
    """(the rows for training or the test, their files), with the part of each that the table or a folder
    names."""
    sheet, files = listing.sheet, listing.files
    split, parts = part_column(sheet.columns, {label}, sheet.name)
    parts = np.array([f.part for f in files]) if parts is None else parts
    rows = [row for row, part in enumerate(parts.tolist()) if part != "val"]
    if n := len(files) - len(rows):
        notes.append(("left out", f"{quantity(n, 'file')} for validation in {listing.path.name}"))
    columns = {name: values[rows] for name, values in sheet.columns.items() if name != split}
    places = [sheet.places[row] for row in rows]
    remaining = replace(sheet, columns=columns, places=places, test=parts[rows] == "test")
    return remaining, [File(files[row].path, str(parts[row]), files[row].folders) for row in rows]


def _first_rows(path: Path, sheet: Sheet, files: Sequence[File], facts: Sequence[np.ndarray]) -> list[int]:
    """The first row of each file. Raises DataError (E404) for rows of one file that differ in a fact."""
    first: dict[Path, int] = {}
    for row, file in enumerate(files):
        before = first.setdefault(file.path, row)
        for values in facts:
            if np.any(values[before] != values[row]):
                one, other = (
                    f"{sheet.where(r)} as {excerpt(np.asarray(values[r]).tolist(), 40)}"
                    for r in (before, row)
                )
                raise DataError("E404", f"{path} lists {file.path.name} {one} and {other}; keep one of them.")
    return list(first.values())
