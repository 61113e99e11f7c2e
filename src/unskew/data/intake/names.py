"""Which files a column of a table names."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath

from unskew.data.intake.sheets import Sheet
from unskew.data.intake.tree import File
from unskew.errors import DataError, excerpt

LEAST_LISTED = 0.5
"""Share of a column's values that are names of files, for the column to count as theirs."""


class Names:
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


def key_in(sheet: Sheet, named: Names, taken: set[str], folder: Path) -> str:
    """The column that names the most files, "" if none does. taken: columns with another purpose."""
    most, key = 0, ""
    for column, values in sheet.columns.items():
        near = [file.path for v in values.tolist() for file in named.called(v, folder)[:1]]
        if column not in taken and len(near) >= LEAST_LISTED * len(values) and len({*near}) > most:
            most, key = len({*near}), column
    return key


def rows_in(path: Path, sheet: Sheet, key: str, named: Names) -> dict[int, File]:
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
