"""A table beside sounds or images that lists them by file name, with their labels and sites."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np

from unskew.data.intake.columns import site_of
from unskew.data.intake.labels import in_order
from unskew.data.intake.notes import Note, counted
from unskew.data.intake.roles import Sorted
from unskew.data.intake.sheets import Sheet, read_csv
from unskew.data.intake.split import part_column
from unskew.data.intake.targets import column_named, label_of, labels_of
from unskew.data.intake.tree import File, Tree
from unskew.errors import DataError, excerpt

LEAST_LISTED = 0.5
"""Share of a column's values that are names of files, for the column to count as theirs."""


def listed(tree: Tree, files: Sequence[File], label: str, site: str) -> Sorted | None:
    """The files that a CSV below the folder lists, with its labels and sites; None where no CSV does.

    label, site: the columns; "" looks for usual names. Raises DataError: E409 where the labels are not to be seen, where a name
    may be that of several files, and for a file with two labels, E404 for labels that are missing or no classes.
    """
    named = _Names(files)
    for path in sorted(tree.root.rglob("*.csv")):
        sheet = read_csv(path)
        taken = {label or label_of(sheet.columns), site or site_of(sheet.columns)}
        if key := _key(sheet, named, taken, path.parent):
            return _sorted(path, sheet, key, named, (label, site))
    return None


class _Names:
    """Files by what a table may call them: name or path, with or without the ending, in any case if there is one such file."""

    def __init__(self, files: Sequence[File]):
        self.count, self._known = len(files), defaultdict[str, list[File]](list)
        for file in files:
            for name in {file.path.name, file.path.stem}:
                self._known[_plain(name)].append(file)

    def called(self, text: str, folder: Path) -> list[File]:
        """The files that a text may name, of which those that fit best. folder: of the table."""
        parts = PurePosixPath(_plain(text)).parts
        near = self._known.get(parts[-1], []) if parts else []
        text = unicodedata.normalize("NFC", text)
        fits: tuple[Callable[[File], int], ...] = (
            lambda file: _in_common(file.path.parent, parts[:-1]),
            lambda file: _plain(file.path.name) == parts[-1],
            lambda file: text.endswith(unicodedata.normalize("NFC", file.path.name)),
            lambda file: file.path.is_relative_to(folder),
        )
        for fit in fits:
            if len(near) > 1:
                best = max(map(fit, near))
                near = [file for file in near if fit(file) == best]
        return near


def _in_common(folder: Path, names: tuple[str, ...]) -> int:
    """How many of these names, the last first, are those of the folder and of the folders that hold it."""
    pairs = zip(reversed(folder.parts), reversed(names))
    return sum(1 for _ in takewhile(lambda pair: _plain(pair[0]) == pair[1], pairs))


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).replace("\\", "/").lower()


def _key(sheet: Sheet, named: _Names, taken: set[str], folder: Path) -> str:
    """The column that names the most files, "" if none does. taken: columns with another purpose."""
    most, key = 0, ""
    for column, values in sheet.columns.items():
        near = [file.path for v in values.tolist() for file in named.called(v, folder)[:1]]
        if column not in taken and len(near) >= LEAST_LISTED * len(values) and len({*near}) > most:
            most, key = len({*near}), column
    return key


def _sorted(path: Path, sheet: Sheet, key: str, named: _Names, columns: tuple[str, str]) -> Sorted:
    others = {c: v for c, v in sheet.columns.items() if c != key}
    label = column_named(others, columns[0], str(path)) if columns[0] else label_of(others)
    if not label:
        raise DataError(
            "E409",
            f"{path} lists files but no column is called label, class, category or target; name it: label=COLUMN.",
        )
    site = column_named(others, columns[1], str(path)) if columns[1] else site_of(others)
    _, parts = part_column(others, {label, site}, str(path))
    rows = _rows(path, sheet, key, named)
    part_of = {i: file.part if parts is None else str(parts[i]) for i, file in rows.items()}
    kept = [i for i in rows if part_of[i] != "val"]
    table = Sheet(path.name, {c: v[kept] for c, v in others.items()}, [sheet.places[i] for i in kept])
    notes: list[Note] = []
    _, values = labels_of(table, label, None, notes) if kept else ("", np.zeros(0, str))
    words = dict(zip(kept, map(str, values.tolist())))
    once = _once(path, sheet, rows, {i: (words[i], part_of[i], others[site][i] if site else "") for i in kept})
    once.sort(key=lambda i: rows[i].path)
    classes = in_order({words[i] for i in once})
    number = {word: i for i, word in enumerate(classes)}
    notes = [("labels", f"from the column '{label}' of {path.name}, files by '{key}'"), *notes[:-1]]
    for n, what in (
        (len(sheet.columns[key]) - len(rows), f"row{{s}} in {path.name} without a file"),
        (len(kept) - len(once), f"row{{s}} in {path.name} that list{{ed}} a file again"),
        (named.count - len({file.path for file in rows.values()}), f"file{{s}} that {path.name} does not list"),
        (len(rows) - len(kept), f"file{{s}} for validation in {path.name}"),
    ):
        if n:
            noun, _, rest = what.partition("{s}")
            notes.append(("left out", f"{counted(n, noun)}{rest.replace('{ed}', 's' if n == 1 else '')}"))
    return Sorted(
        tuple(File(rows[i].path, part_of[i], rows[i].folders) for i in once),
        classes,
        tuple(number[words[i]] for i in once),
        tuple(str(others[site][i]) for i in once) if site else None,
        tuple(notes),
    )


def _rows(path: Path, sheet: Sheet, key: str, named: _Names) -> dict[int, File]:
    """The file of each row that names one. Raises DataError (E409) where it may be one of several."""
    rows: dict[int, File] = {}
    for i, text in enumerate(sheet.columns[key].tolist()):
        near = named.called(text, path.parent)
        if len(near) > 1:
            several = f"{excerpt(text, 60)} {sheet.where(i)} of {path} may be {near[0].path} or {near[1].path}"
            raise DataError("E409", f"{several}; write the path of each file, from {path.parent} on.")
        if near:
            rows[i] = near[0]
    return rows


def _once(path: Path, sheet: Sheet, rows: dict[int, File], facts: dict[int, tuple[str, str, str]]) -> list[int]:
    """The first row of each file. facts: of each row, which must be the same for a file. Raises DataError (E409) otherwise."""
    first: dict[Path, int] = {}
    for i, fact in facts.items():
        before = first.setdefault(rows[i].path, i)
        if facts[before] != fact:
            one, two = next((excerpt(a, 40), excerpt(b, 40)) for a, b in zip(facts[before], fact) if a != b)
            text = f"{path} lists {rows[i].path.name} {sheet.where(before)} as {one} and {sheet.where(i)} as {two}"
            raise DataError("E409", f"{text}; keep one of them.")
    return list(first.values())
