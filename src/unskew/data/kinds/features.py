"""The columns of a table as numbers to train on.

    numbers                       as they are
    words in up to 20 kinds       a column of 0 and 1 for each kind (one column for two kinds)
    other words, row numbers      left out, with a note
    missing values, and other values in a column of numbers                 refused, with the line; all
                                                                            columns of a table in one error

Cells without a value may be filled where the table is read:

    median       numbers: the median of the training rows of the same site; words: a kind of their own
    indicator    the same, and for each column of numbers a further one that is 1 where a value is missing

A site fills its cells from its own rows, so no statistic leaves it. A table to be predicted is filled with
the medians of all training rows that were read together, which `Intake.form` holds; those of a site stay in
the site's own runs. Rows are for training unless the table says otherwise.

Letters: N rows.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError, excerpt
from unskew.formats.calls import call_text

ROW_NUMBERS = ("", "index", "row", "rownames", "row number", "unnamed: 0")
NAME_SEPARATOR = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")
MOST_KINDS = 20
NUMBER_SHARE = 0.5
"""Share of cells that look like numbers above which a column holds numbers, and other cells are mistakes.
A column called `id` with at least this share of distinct values holds row numbers."""
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


Kinds: TypeAlias = dict[str, list[str]]
"""For each column of features, the words that each became a column of 0 and 1; [] for numbers."""


def column_width(kinds: Sequence[str]) -> int:
    """How many numbers a column of a table becomes. kinds: its words, empty for numbers; two words make
    one number."""
    return 1 if len(kinds) in (0, 2) else len(kinds)


class ColumnFault(DataError):
    """A column that cannot be read (E405). fault: without the name of the column. remedy: how to mend it."""

    def __init__(self, sheet: Sheet, column: str, fault: str, remedy: str):
        super().__init__("E405", f"{sheet.name}: column {excerpt(column, 40)} {fault}; {remedy}.")
        self.column, self.fault, self.remedy = column, fault, remedy


MOST_LISTED = 8
"""The most columns whose faults one error lists."""


def check_faults(sheet: Sheet, faults: Sequence[ColumnFault]) -> None:
    """Raises a DataError (E405) that lists the faults, with the argument of a file that leaves all these
    columns out; nothing without faults."""
    if not faults:
        return
    columns = [fault.column for fault in faults]
    text = faults[0].text
    if len(faults) > 1:
        listed = [f"{excerpt(fault.column, 40)} {fault.fault}" for fault in faults[:MOST_LISTED]]
        more = f"; and {len(faults) - MOST_LISTED} more" if len(faults) > MOST_LISTED else ""
        remedies = ". ".join(dict.fromkeys(fault.remedy[:1].upper() + fault.remedy[1:] for fault in faults))
        head = f"{sheet.name} has {len(faults)} columns that cannot be read"
        text = f"{head}: {'; '.join(listed)}{more}. {remedies}."
    drop = columns if any("," in column for column in columns) else ",".join(columns)
    advice = f" {call_text('FILE', {'drop': drop})} leaves {'them' if len(columns) > 1 else 'it'} out."
    raise DataError("E405", f"{text}{advice if sheet.places else ''}")


def find_kinds(sheet: Sheet, columns: Mapping[str, np.ndarray], notes: list[Note]) -> Kinds:
    """The columns of features that are used, and how each becomes numbers; adds to the notes.

    columns: the feature columns of the sheet. Raises DataError: E405 that lists the missing values, and other
    cells than numbers in columns of numbers, of all columns; E403 if none can be used.
    """
    used: Kinds = {}
    left_out, spread, faults = list[str](), list[str](), list[ColumnFault]()
    for column in columns:
        values = columns[column]
        if numbers_rows(sheet, column, values):
            left_out.append(f"'{column}' (numbers of rows)")
            continue
        try:
            kinds = kinds_of(sheet, column, values)
        except ColumnFault as fault:
            faults.append(fault)
            continue
        if len(kinds) > MOST_KINDS:
            left_out.append(f"'{column}' ({len(kinds):,} different words)")
            continue
        used[column] = kinds
        if kinds:
            spread.append(f"'{column}' ({len(kinds)} kinds)")
            notes += _unseen_notes(sheet, f"column '{column}'", values)
    check_faults(sheet, faults)
    if left_out:
        notes.append(("left out", f"columns {abbreviate(left_out, 5)}"))
    if spread:
        notes.append(("note", f"words became columns of 0 and 1: {abbreviate(spread, 5)}"))
    if sheet.decimal_commas:
        notes.append(("note", "commas were read as decimal points, because semicolons separate the columns"))
    if not used:
        raise DataError("E403", f"{sheet.name} has no column of numbers beside its labels.")
    return used


def kinds_of(sheet: Sheet, column: str, values: np.ndarray) -> list[str]:
    """The kinds of words in a column, sorted; [] for numbers. Raises DataError (E405) as `column_of_numbers`
    does."""
    numbers = column_of_numbers(sheet, column, values)
    return [] if numbers is not None else sorted(set(cells.words(values).tolist()))


def _unseen_notes(sheet: Sheet, subject: str, values: np.ndarray) -> list[Note]:
    """A note on words that only test rows have."""
    if sheet.test is None:
        return []
    test, train = (set(cells.words(values[rows]).tolist()) for rows in (sheet.test, ~sheet.test))
    text = excerpt(abbreviate(sorted(test - train)), 60)
    return [("note", f"{subject} has {text} only in the test part")] if test - train else []


def encode_as(sheet: Sheet, used: Kinds, columns: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """float32 [N, columns] of a table, with columns found by name and encoded as `used` specifies. columns:
    in place of the sheet's.

    Raises DataError: E403 for a column that is missing, E405 for missing values, cells that are no numbers,
    and words that the column did not have in training.
    """
    parts: list[np.ndarray] = []
    columns = sheet.columns if columns is None else columns
    for column, kinds in used.items():
        name = excerpt(column, 40)
        if column not in columns:
            names = abbreviate([excerpt(name, 40) for name in columns], 12)
            raise DataError(
                "E403", f"{sheet.name} has no column {name}, which the model reads; it has {names}."
            )
        values = columns[column]
        if kinds:
            texts = _words_in(sheet, column, values, kinds)
            parts += [texts == kind for kind in (kinds[1:] if len(kinds) == 2 else kinds)]
        elif (numbers := column_of_numbers(sheet, column, values)) is not None:
            parts.append(numbers)
        else:
            fault = f"column {name} holds words such as {excerpt(cells.word(values[0]), 30)}"
            raise DataError("E405", f"{sheet.name}: {fault}; the model was trained on numbers there.")
    return np.stack([np.asarray(v, dtype=np.float64) for v in parts], axis=1).astype(np.float32)


def _words_in(sheet: Sheet, column: str, values: np.ndarray, kinds: list[str]) -> np.ndarray:
    """A column of words, [N]. Raises ColumnFault for missing ones, DataError (E405) for others than
    `kinds`."""
    if (missing := cells.missing(values)).any():
        raise ColumnFault(sheet, column, *_gaps(sheet, missing))
    texts = cells.words(values)
    unknown = ~np.isin(texts, kinds)
    if unknown.any():
        row = int(np.argmax(unknown))
        fault = f"column {excerpt(column, 40)} holds {excerpt(str(texts[row]), 30)} {sheet.where(row)}"
        known = abbreviate([excerpt(kind, 30) for kind in kinds], 12)
        count = quantity(int(unknown.sum()), "such cell")
        remedy = f"({count}), which the model has never seen; it knows {known}"
        raise DataError("E405", f"{sheet.name}: {fault} {remedy}.")
    return texts


def is_row_number(column: str, values: np.ndarray) -> bool:
    """Whether a column numbers the rows: by its name if its values differ, or as consecutive whole
    numbers."""
    count = len(values)
    if count < 2:
        return False
    is_number = values.dtype.kind in "biuf"
    kinds = len(np.unique(values, equal_nan=False)) if is_number else len(set(values.tolist()))
    if "id" in (w.lower() for w in NAME_SEPARATOR.split(column)):
        return kinds > NUMBER_SHARE * count
    if kinds < count:
        return False
    texts = values.tolist() if values.dtype.kind in "US" else []
    if texts and all(t.isascii() and t.isdigit() and len(t) < 19 for t in texts):
        values = values.astype(np.int64)
    consecutive = values.dtype.kind in "iu" and int(values.max()) - int(values.min()) == count - 1
    return consecutive or column.strip().lower() in ROW_NUMBERS


def numbers_rows(sheet: Sheet, column: str, values: np.ndarray) -> bool:
    """Whether a column of features numbers the rows, of the table or of its training part."""
    train = values if sheet.test is None else values[~sheet.test]
    return is_row_number(column, values) or is_row_number(column, train)


def column_of_numbers(sheet: Sheet, column: str, values: np.ndarray) -> np.ndarray | None:
    """float64 [N], or None for a column of words. Raises ColumnFault for missing and mistaken values, except
    in a column of so many words that it is left out."""
    missing = cells.missing(values)
    if not missing.any():
        return numbers_between_gaps(sheet, column, values, missing)
    fault, remedy = _gaps(sheet, missing)
    try:
        numbers = numbers_between_gaps(sheet, column, values, missing)
    except ColumnFault as mistake:
        raise ColumnFault(
            sheet, column, f"{fault}, and {mistake.fault}", f"{remedy}. {mistake.remedy.capitalize()}"
        ) from None
    if numbers is None and len(set(cells.words(values[~missing]).tolist())) > MOST_KINDS:
        return None
    raise ColumnFault(sheet, column, fault, remedy)


def numbers_between_gaps(
    sheet: Sheet, column: str, values: np.ndarray, missing: np.ndarray
) -> np.ndarray | None:
    """The numbers of a column, float64 [N] with NaN for missing ones; None for a column of words. Raises
    ColumnFault for mistaken values. missing: bool [N]."""
    if values.dtype.kind not in "biufOUS":
        return None
    if missing.all():
        return np.full(len(values), np.nan)
    present = np.flatnonzero(~missing)
    known = values[present]
    numbers = (
        known.astype(np.float64)
        if values.dtype.kind in "biuf"
        else _parse_numbers(sheet, column, known, present)
    )
    if numbers is None:
        return None
    with np.errstate(invalid="ignore"):
        large = np.abs(numbers) > LARGEST_FLOAT32
    if large.any():
        row = int(np.argmax(large))
        place = sheet.where(int(present[row]))
        count = quantity(int(large.sum()), "such cell")
        fault = f"holds {known[row]} {place}, which is too large for float32 ({count})"
        raise ColumnFault(sheet, column, fault, "correct it, or leave the row out")
    filled = np.full(len(values), np.nan)
    filled[present] = numbers
    return filled


def _gaps(sheet: Sheet, missing: np.ndarray) -> tuple[str, str]:
    """(the fault of a column with missing values, its remedy)."""
    first, count = sheet.where(int(np.argmax(missing))), int(missing.sum())
    remedy = "fill it, or leave these rows or the column out"
    if sheet.places:
        remedy = (
            "fill missing cells, FILE(missing=median) or FILE(missing=indicator), or leave the column out"
        )
    return f"has no value {first} ({count:,} are missing)", remedy


def _parse_numbers(sheet: Sheet, column: str, values: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """The numbers in a column of texts, float64 [n], None for a column of words. rows: their places in the
    sheet, [n]."""
    texts = [str(v).strip() for v in values.tolist()]
    if (row := sheet.ambiguous_number(texts)) is not None:
        digits, where = texts[row].replace(".", ""), sheet.where(int(rows[row]))
        fault = f"holds {texts[row]} {where}, which may be {float(texts[row]):g} or {digits}"
        remedy = "name the format, FILE(decimal='.') or FILE(thousands='.'), or write plain numbers"
        raise ColumnFault(sheet, column, fault, remedy)
    rewritten = sheet.plain_numbers(texts)
    plain = cells.are_plain(rewritten)
    if plain.all():
        return np.array(rewritten).astype(np.float64)
    if cells.look_like_numbers(texts).mean() <= NUMBER_SHARE:
        return None
    row = int(np.argmin(plain))
    count = quantity(int((~plain).sum()), "such cell")
    fault = f"holds numbers but {excerpt(str(values[row]), 30)} {sheet.where(int(rows[row]))} ({count})"
    remedy = (
        "write plain numbers such as 1234.5, or name their format, such as FILE(decimal=',', thousands='.')"
    )
    raise ColumnFault(sheet, column, fault, remedy)


def encode_inputs(
    sheet: Sheet, columns: Sequence[str], notes: list[Note]
) -> tuple[dict[str, np.ndarray], Kinds]:
    """(these columns as numbers, [N] or, for words of several kinds, [N, kinds]; the encoding of each); adds
    to the notes. Raises DataError: E403 for words of too many kinds, E405 for missing values."""
    used: Kinds = {}
    for column in columns:
        used[column] = kinds = kinds_of(sheet, column, sheet.columns[column])
        if len(kinds) > MOST_KINDS:
            text = f"column '{column}' holds {len(kinds):,} different words, too many for an input"
            raise DataError("E403", f"{sheet.name}: {text}; leave it out of x.")
        if kinds:
            notes.append(("note", f"input '{column}': words became 0 and 1 ({len(kinds)} kinds)"))
            notes += _unseen_notes(sheet, f"input '{column}'", sheet.columns[column])
    return encode_inputs_as(sheet, used), used


def encode_inputs_as(sheet: Sheet, used: Kinds) -> dict[str, np.ndarray]:
    """The inputs from another table, encoded as `used` specifies. Raises DataError as `encode_as` does."""
    values = {column: encode_as(sheet, {column: kinds}) for column, kinds in used.items()}
    return {column: v[:, 0] if v.shape[1] == 1 else v for column, v in values.items()}


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
    """A table to be predicted, with its missing values filled as in training, and a warning that counts the
    cells; unchanged if the training rows were complete. form: how the training rows were read
    (Intake.form)."""
    if "missing" not in form:
        return sheet
    filled = dict(sheet.columns)
    kinds = dict(form["columns"])
    counts = list[str]()
    for column in [c for c in kinds if c in sheet.columns]:
        values = sheet.columns[column]
        missing = cells.missing(values)
        if missing.any():
            counts.append(f"{excerpt(column, 40)} ({int(missing.sum()):,} of {len(missing):,})")
        if kinds[column]:
            filled[column] = np.where(missing, WORD, cells.words(values))
        elif (numbers := numbers_between_gaps(sheet, column, values, missing)) is not None:
            filled[column] = np.where(missing, form["missing"].get(column, 0.0), numbers)
            filled[indicator_name(column)] = missing.astype(np.float64)
    if counts:
        text = f"{sheet.name}: empty cells were filled, numbers with the median of the training rows"
        warnings.warn(f"{text}: {abbreviate(counts, 5)}", stacklevel=8)
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
