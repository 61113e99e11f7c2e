"""A table beside sounds or images that lists them by file name: what stands in a row is known of a file.

Letters: N files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.intake import cells
from unskew.data.intake.columns import site_of
from unskew.data.intake.features import is_row_number
from unskew.data.intake.labels import in_order
from unskew.data.intake.names import Names, key_in, rows_in
from unskew.data.intake.notes import Note, counted, some
from unskew.data.intake.roles import Sorted
from unskew.data.intake.sheets import Sheet, read_csv
from unskew.data.intake.split import part_column
from unskew.data.intake.tables import labels_in, sites_in
from unskew.data.intake.targets import column_named, label_of
from unskew.data.intake.tree import File, Tree
from unskew.data.intake.worded import as_inputs
from unskew.data.target import Target
from unskew.errors import DataError, excerpt


@dataclass(frozen=True)
class Listing:
    """A table and the files that its rows name.

    sheet: the rows that have a file, in the order of the files' paths, without the column `key` of names. files: of each row, of
    which several may have the same. notes: which rows and files are without the other.
    """

    path: Path
    key: str
    sheet: Sheet
    files: tuple[File, ...]
    notes: tuple[Note, ...]


def listing_of(tree: Tree, files: Sequence[File], taken: Sequence[str] = ()) -> Listing | None:
    """The CSV below the folder that lists the files, None where none does; of several the one that has all named columns.

    taken: columns that are named, which are not looked at for names of files. Raises DataError (E409) where several CSVs may be
    meant, and where a name may be that of several files.
    """
    names, listings = Names(files), list[tuple[Path, Sheet, str]]()
    for path in sorted(tree.root.rglob("*.csv")):
        sheet = read_csv(path)
        others = {*taken, label_of(sheet.columns), site_of(sheet.columns)}
        if key := key_in(sheet, names, others, path.parent):
            listings.append((path, sheet, key))
    if len(listings) > 1:
        listings = [one for one in listings if {*taken} - {""} <= one[1].columns.keys()] or listings
    if len(listings) > 1:
        both = f"both {listings[0][0]} and {listings[1][0]} list files"
        remedy = "put their rows into one table, with a column split of train and test where they are parts"
        raise DataError("E409", f"{both}; {remedy}.")
    return _listing(*listings[0], names) if listings else None


def _listing(path: Path, sheet: Sheet, key: str, names: Names) -> Listing:
    file_of = rows_in(path, sheet, key, names)
    rows = sorted(file_of, key=lambda row: (file_of[row].path, row))
    columns = {name: values[rows] for name, values in sheet.columns.items() if name != key}
    with_files = replace(sheet, columns=columns, places=[sheet.places[row] for row in rows])
    notes = list[Note]()
    for n, noun, what in (
        (len(sheet.places) - len(rows), "row", f"in {path.name} without a file"),
        (names.count - len({file_of[row].path for row in rows}), "file", f"that {path.name} does not list"),
    ):
        if n:
            notes.append(("left out", f"{counted(n, noun)} {what}"))
    return Listing(path, key, with_files, tuple(file_of[row] for row in rows), tuple(notes))


def listed(listing: Listing, named: tuple[str, str], aim: Target | None = None, inputs: Sequence[str] = ()) -> Sorted:
    """The listed files with their labels, sites and further facts.

    named: the columns of labels and sites; "" looks for usual names. aim: the target, where one is named. inputs: columns that
    are inputs beside the file.
    Raises DataError: E409 where the labels are not to be seen and for a file in two rows that differ, E403 for columns that are
    not there and for missing sites, E404 for labels, E405 for inputs with missing values.
    """
    name, notes = listing.path.name, [*listing.notes]
    notes.append(("labels", f"{name} lists the files, by '{listing.key}'"))
    label, site = named
    if not (label or aim or label_of(listing.sheet.columns)):
        has = f"no column is called label, class, category or target; it has: {some(list(listing.sheet.columns), 12)}"
        raise DataError("E409", f"{listing.path} lists files but {has}. Name it: label=COLUMN.")
    sheet, files = _without_validation(listing, label, notes)
    labels, y = labels_in(sheet, label, None, aim, notes)
    rest = [column for column in sheet.columns if column not in labels]
    site = column_named(dict.fromkeys(rest), site, sheet.name) if site else site_of(dict.fromkeys(rest))
    sites = sites_in(sheet, site, sheet.columns[site]) if site else None
    further = [column_named(dict.fromkeys(rest), name, sheet.name) for name in inputs]
    beside, used = as_inputs(sheet, further, notes)
    facts = [y, np.array([file.part for file in files]), *([] if sites is None else [sites]), *beside.values()]
    once = _once(listing.path, sheet, files, facts)
    if n := len(files) - len(once):
        notes.append(("left out", f"{counted(n, 'row')} in {name} that list{'s' if n == 1 else ''} a file again"))
    classes, y = _numbered(y[once])
    columns = {column: sheet.columns[column][once] for column in rest if column != "site"}
    return Sorted(
        tuple(files[row] for row in once),
        classes,
        y,
        None if sites is None else tuple(map(str, sites[once].tolist())),
        tuple(notes),
        facts={column: values for column, values in columns.items() if _is_fact(column, values)},
        target=aim,
        beside={column: values[once] for column, values in beside.items()},
        used=used,
    )


def _without_validation(listing: Listing, label: str, notes: list[Note]) -> tuple[Sheet, list[File]]:
    """(the rows that are for training or the test, their files, each in the part that the table or a folder says)."""
    sheet, files = listing.sheet, listing.files
    split, parts = part_column(sheet.columns, {label}, sheet.name)
    parts = np.array([f.part for f in files]) if parts is None else parts
    kept = [row for row, part in enumerate(parts.tolist()) if part != "val"]
    if n := len(files) - len(kept):
        notes.append(("left out", f"{counted(n, 'file')} for validation in {listing.path.name}"))
    columns = {name: values[kept] for name, values in sheet.columns.items() if name != split}
    places = [sheet.places[row] for row in kept]
    divided = replace(sheet, columns=columns, places=places, test=parts[kept] == "test")
    return divided, [File(files[row].path, str(parts[row]), files[row].folders) for row in kept]


def _numbered(y: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """(the classes that labels of words name, () for other labels; the labels, of words their numbers)."""
    if y.dtype.kind not in "OUS":
        return (), y
    classes = in_order(set(map(str, y.tolist())))
    number = {word: i for i, word in enumerate(classes)}
    return classes, np.array([number[str(word)] for word in y.tolist()], dtype=np.int64)


def _once(path: Path, sheet: Sheet, files: Sequence[File], facts: Sequence[np.ndarray]) -> list[int]:
    """The first row of each file. facts: of each row, which must be the same for a file. Raises DataError (E409) otherwise."""
    first: dict[Path, int] = {}
    for row, file in enumerate(files):
        before = first.setdefault(file.path, row)
        for values in facts:
            one, two = _plain(values[before]), _plain(values[row])
            if one != two:
                was, now = (f"{sheet.where(at)} as {excerpt(value, 40)}" for at, value in ((before, one), (row, two)))
                raise DataError("E409", f"{path} lists {file.path.name} {was} and {now}; keep one of them.")
    return list(first.values())


def _plain(value: Any) -> Any:
    """A label, part, site or number as Python has it."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _is_fact(name: str, values: np.ndarray) -> bool:
    """Whether clients can be formed by a column: nothing is missing in it, and it does not number the files."""
    return not cells.missing(values).any() and not is_row_number(name, values)
