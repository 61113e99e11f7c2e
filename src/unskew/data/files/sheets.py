"""Tables in text files: a header line, and a row for each sample. Messages count the file's lines from 1."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, permutations
from pathlib import Path
from typing import IO

import numpy as np

from unskew.data.files import cells
from unskew.data.files.archives import check_unpacked
from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.reading_notes import abbreviate
from unskew.errors import DataError, excerpt
from unskew.system.machine import usable_memory

CSV_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""The endings of tables in text files."""
DELIMITERS = ",;\t|"
CHARACTER_BYTES, COLUMN_BYTES = 16, 1 << 28
"""Approximate memory in bytes for one character of a table while it is read, and the maximal size of a
column as an array of words."""
LONGEST_LINE = 1 << 24
"""Number of characters from which a line counts as damage; it has to be held in memory."""
NUMBER_NAMES, COUNTED_NAMES = 2, 3
"""Number of numeric names with which a header counts as data, and with which 0, 1, 2 are names, as pandas
writes."""


@dataclass(frozen=True)
class Sheet:
    """A table with a name, for messages, and columns [N] by name.

    places: the place of each row, such as `line 17`; empty for tables in memory. decimal_commas: whether
    `1,5` is a number. test: the test rows, bool [N], None if the table has no such division. unused: the rows
    that belong to no part. semicolons: whether these separate columns. numbers: the format of numbers, if it
    is named. index: columns that are neither features nor labels, such as pandas' index. paths: the path of
    each row's file below the folder, () if rows have no files of their own.
    """

    name: str
    columns: Mapping[str, np.ndarray]
    places: Sequence[str] = ()
    decimal_commas: bool = False
    test: np.ndarray | None = None
    unused: np.ndarray | None = None
    semicolons: bool = False
    numbers: cells.NumberFormat | None = None
    index: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    paths: Sequence[str] = ()

    def where(self, row: int) -> str:
        """`at line 17`, or `in row 15` (from 0) of a table in memory."""
        return f"at {self.places[row]}" if self.places else f"in row {row}"

    def plain_numbers(self, texts: Sequence[str]) -> list[str]:
        """Numbers in this table's format as programs write them; other words stay."""
        if self.numbers:
            return self.numbers.plain(texts)
        return cells.with_decimal_points(texts) if self.decimal_commas else list(texts)

    def ambiguous_number(self, texts: Sequence[str]) -> int | None:
        """The position of the first number of a column, such as 1.234, that may be 1234; None if there is
        none, or if other columns show what points mean."""
        local = self.decimal_commas or self.semicolons
        row = cells.thousands_or_decimals(texts, local) if not self.numbers else None
        if row is None or self.decimal_commas:
            return row
        columns = (v.tolist() for v in self.columns.values() if v.dtype.kind in "OUS")
        return None if any(cells.has_decimal_points([str(t) for t in v]) for v in columns) else row


def table_files(path: Path) -> list[Path]:
    """The CSV files of a folder, or those that a pattern matches, without hidden ones; sorted by name."""
    files = path.iterdir() if path.is_dir() else path.parent.glob(path.name)
    return sorted(
        file
        for file in files
        if table_ending(file) in CSV_ENDINGS and not file.name.startswith(".") and file.is_file()
    )


def table_ending(path: Path) -> str:
    """A table's ending in small letters, with that of its compression: `.csv`, `.csv.gz`."""
    endings = path.suffixes[-2:] if path.suffix.lower() == ".gz" else [path.suffix]
    return "".join(endings).lower()


class ColumnSubset(Mapping[str, np.ndarray]):
    """Some columns of a table, in this order; a column is read when it is used."""

    def __init__(self, columns: Mapping[str, np.ndarray], names: Sequence[str]):
        self._columns, self._names = columns, dict.fromkeys(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_csv(path: Path, numbers: cells.NumberFormat | None = None) -> Sheet:
    """A CSV with a header line, plain or compressed (.gz). numbers: the format of its numbers, if it is
    named.

    Columns are separated by the most frequent of , ; tab | in the header; files with semicolons may have
    decimal commas.
    Raises DataError: E402 for a missing file, E401 for a file that is no table, E142 for a table that memory
    does not hold.
    """
    remedy = "save it as CSV in UTF-8 (in Excel: 'CSV UTF-8')"
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with damage_as_error(path, "a table with a header line", remedy):
        with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
            text = _bounded_lines(path, file)
            first = next(text, "")
            delimiter = max(DELIMITERS, key=first.count)
            rows, lines = _text_rows(chain([first], text), delimiter)
        if "\0" in first:
            raise ValueError("it is not written in UTF-8")
    if len(rows) < 2:
        raise DataError("E401", f"{path} holds no rows below its header line.")
    _check_shape(path, rows, lines)
    names = [cells.word(h) for h in rows[0]]
    columns = {n: _text_column([row[j].strip() for row in rows[1:]]) for j, n in enumerate(names)}
    if "" in columns and not columns[""].astype(bool).any():  # every line ends with a separator
        del columns[""]
    semicolons = delimiter == ";"
    commas = (
        semicolons and not numbers and any(cells.has_decimal_commas(v.tolist()) for v in columns.values())
    )
    places = tuple(f"line {n}" for n in lines[1:])
    return Sheet(path.name, columns, places, commas, semicolons=semicolons, numbers=numbers)


def read_sheet(path: Path, numbers: cells.NumberFormat | None) -> Sheet:
    """The table of `read_csv`. Raises DataError (E401) also for a header that looks like values."""
    sheet = read_csv(path, numbers)
    check_header(str(path), list(sheet.columns))
    return sheet


def _bounded_lines(path: Path, file: IO[str]) -> Iterator[str]:
    """The lines of a table. Raises DataError: E142 for more of them than memory holds as a table, E401 for
    more than a compressed file of this size makes likely, and for a line that has no end."""
    limit, size, length = usable_memory() // CHARACTER_BYTES, path.stat().st_size, 0
    while line := file.readline(LONGEST_LINE):
        length += len(line)
        if len(line) == LONGEST_LINE:
            raise DataError("E401", f"{path} has a line of more than {LONGEST_LINE:,} characters.")
        if length > limit:
            fault = f"{path} holds more than {limit:,} characters, for which memory is too small"
            raise DataError("E142", f"{fault}; save it as Parquet, which is read in pieces.")
        if path.suffix.lower() == ".gz":
            check_unpacked(length, path, size)
        yield line


def _text_rows(file: Iterable[str], delimiter: str) -> tuple[list[list[str]], list[int]]:
    """(rows that are not blank, the line at which each begins)."""
    reader = csv.reader(file, delimiter=delimiter)
    rows, lines, begin = [], [], 1
    for row in reader:
        if row:
            rows.append(row)
            lines.append(begin)
        begin = reader.line_num + 1
    return rows, lines


def _text_column(texts: list[str]) -> np.ndarray:
    """Cells as an array of words of the longest one's length; as objects if that takes too much memory."""
    wide = 4 * max(map(len, texts), default=0) * len(texts) > COLUMN_BYTES
    return np.array(texts, dtype=object if wide else str)


def _check_shape(path: Path, rows: list[list[str]], lines: list[int]) -> None:
    """Raises DataError (E401) unless every row has a value for every name, and the names differ."""
    names = [cells.word(h) for h in rows[0]]
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        check_header(str(path), names)
        raise DataError("E401", f"{path} has two columns called {excerpt(twice[0])}.")
    for line, row in zip(lines, rows):
        if len(row) != len(names):
            fault = f"has {len(row)} values; the header, line 1, has {len(names)}"
            raise DataError("E401", f"{path} line {line} {fault}.")
    if len(names) == 1 and len(names[0].split()) > 1:
        remedy = "separate columns by commas, semicolons, tabs or |"
        raise DataError("E401", f"{path} has one column, {excerpt(names[0], 40)}; {remedy}.")


def check_header(name: str, names: list[str]) -> None:
    """Raises DataError (E401) if the names of columns look like values; consecutive numbers count as names.

    name: name of the table.
    """
    numbers = [n for n in names if cells.PLAIN_NUMBER.fullmatch(n)]
    counted = len(numbers) >= COUNTED_NAMES and numbers == [str(i) for i in range(len(numbers))]
    as_data = [n for n in names if not n or n in numbers or cells.is_date(n)]
    if not counted and (len(numbers) >= NUMBER_NAMES or len(as_data) == len(names)):
        values = abbreviate([excerpt(n, 20)[1:-1] or "an empty name" for n in as_data])
        fault = f"the first line looks like data ({values})"
        raise DataError("E401", f"{name}: {fault}; put the names of the columns above it.")


def join_sheets(name: str, sheets: Sequence[Sheet], columns: Sequence[str]) -> Sheet:
    """The rows of several tables, one after another, with these columns, which all of them have.

    Raises DataError (E405) for a column with decimal commas in one part and ambiguous points in another.
    """
    check_points(sheets, columns)
    joined: dict[str, np.ndarray] = {}
    for column in columns:
        parts = [sheet.columns[column] for sheet in sheets]
        kinds = {part.dtype.kind for part in parts}
        alike = kinds <= {*"biuf"} or len(kinds) == 1
        joined[column] = np.concatenate(parts if alike else [part.astype(object) for part in parts])
    places = list[str]()
    for sheet in sheets:
        rows = range(len(next(iter(sheet.columns.values()), ())))
        places += [f"{place} of {sheet.name}" for place in sheet.places]
        places += [] if sheet.places else [f"row {i} of {excerpt(sheet.name)}" for i in rows]
    return Sheet(
        name,
        joined,
        places,
        any(sheet.decimal_commas for sheet in sheets),
        semicolons=any(sheet.semicolons for sheet in sheets),
        numbers=sheets[0].numbers,
    )


def check_points(sheets: Sequence[Sheet], columns: Iterable[str]) -> None:
    """Raises DataError (E405) for a number such as 1.234 in one of these columns that has decimal commas in
    another table."""
    for one, other in permutations(sheets, 2):
        for column in columns if one.decimal_commas and not other.decimal_commas else ():
            texts = [str(v).strip() for v in other.columns[column].tolist()]
            row = next((i for i, t in enumerate(texts) if "." in t and cells.THOUSANDS.fullmatch(t)), None)
            if row is not None and cells.has_decimal_commas(one.columns[column].tolist()):
                fault = f"column '{column}' holds {texts[row]} {other.where(row)}, and {one.name} has decimal"
                remedy = "commas there; write the numbers of both in one way"
                raise DataError("E405", f"{other.name}: {fault} {remedy}.")
