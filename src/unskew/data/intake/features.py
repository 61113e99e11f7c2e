"""The columns of a table as numbers to train on.

    numbers                 as they are
    words in up to 20 kinds   a column of 0 and 1 for each kind (one column for two kinds)
    other words, numbers of rows  left out and told
    missing values, and columns of numbers among which other values stand      refused, with the line

Letters: N rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from unskew.data.intake import cells, codes, rounded
from unskew.data.intake.notes import Note, counted, some
from unskew.data.intake.sheets import Sheet
from unskew.errors import DataError, excerpt

ROW_NUMBERS = ("", "index", "row", "rownames", "row number", "unnamed: 0")
WORDS_OF_NAME = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")
MOST_KINDS = 20
MOSTLY = 0.5
"""Share of cells that look like numbers above which a column holds numbers, and other cells are mistakes. The same share
of different values makes a column that is called `id` one of row numbers."""
LARGEST = float(np.finfo(np.float32).max)


Kinds: TypeAlias = dict[str, list[str]]
"""By the column of a table that is a feature, the words of which each became a column of 0 and 1; [] for numbers."""


@dataclass(frozen=True)
class Judged:
    """What becomes of a column. kinds: as in `Kinds`; None where it numbers the rows. unseen: words that only test rows have.
    remark: what else to tell of it."""

    kinds: list[str] | None
    unseen: tuple[str, ...] = ()
    remark: str = ""


def numbers_of(sheet: Sheet, columns: Mapping[str, np.ndarray], notes: list[Note]) -> tuple[np.ndarray, Kinds]:
    """(float32 [N, columns], what became of each column that is used); adds to the notes.

    columns: those of the sheet that are features. Raises DataError: E403 where none can be used, E405 for missing values
    and for cells that are no numbers in columns of numbers.
    """
    parts: dict[str, list[np.ndarray]] = {}

    def judge(column: str) -> Judged:
        one, parts[column] = judged(sheet, column, columns[column])
        return one

    used = kinds_of(sheet, columns, judge, notes)
    return stacked([part for column in used for part in parts[column]]), used


def kinds_of(sheet: Sheet, columns: Iterable[str], judge: Callable[[str], Judged], notes: list[Note]) -> Kinds:
    """What becomes of each column that is used; adds to the notes. Raises DataError (E403) where none can be used."""
    used: Kinds = {}
    left_out: list[str] = []
    spread: list[str] = []
    for column in columns:
        one = judge(column)
        if one.kinds is None:
            left_out.append(f"'{column}' (numbers of rows)")
            continue
        if len(one.kinds) > MOST_KINDS:
            left_out.append(f"'{column}' ({len(one.kinds):,} different words)")
            continue
        used[column] = one.kinds
        if one.kinds:
            spread.append(f"'{column}' ({len(one.kinds)} kinds)")
        if one.remark:
            notes.append(("note", one.remark))
        if one.unseen:
            notes.append(("note", f"column '{column}' has {excerpt(some(list(one.unseen)), 60)} only in the test part"))
    if left_out:
        notes.append(("left out", f"columns {some(left_out, 5)}"))
    if spread:
        notes.append(("note", f"words became columns of 0 and 1: {some(spread, 5)}"))
    if sheet.decimal_commas:
        notes.append(("note", "commas were read as decimal points, because semicolons separate the columns"))
    if not used:
        raise DataError("E403", f"{sheet.name} has no column of numbers beside its labels.")
    return used


def judged(sheet: Sheet, column: str, values: np.ndarray) -> tuple[Judged, list[np.ndarray]]:
    """(what becomes of a column, the columns of numbers that it becomes, [N] each). Raises DataError (E405) as `column_of_numbers` does."""
    train = values if sheet.test is None else values[~sheet.test]
    if is_row_number(column, values) or is_row_number(column, train):
        return Judged(None), []
    return turned(sheet, column, values)


def turned(sheet: Sheet, column: str, values: np.ndarray) -> tuple[Judged, list[np.ndarray]]:
    """The same of a column that is used in any case; no columns where it has too many kinds of words."""
    if (numbers := column_of_numbers(sheet, column, values)) is not None:
        return Judged([], remark=_remark(column, numbers)), [numbers]
    train = values if sheet.test is None else values[~sheet.test]
    texts = cells.words(values)
    kinds = sorted(set(texts.tolist()))
    if len(kinds) > MOST_KINDS:
        return Judged(kinds), []
    return Judged(kinds, tuple(sorted(set(kinds) - {cells.word(v) for v in train.tolist()}))), _spread(texts, kinds)


def numbers_as(sheet: Sheet, used: Kinds) -> np.ndarray:
    """float32 [N, columns] of another table, its columns found by name and turned into numbers as `used` says.

    Raises DataError: E403 for a column that is missing, E405 for missing values, cells that are no numbers, and words
    that the column did not have.
    """
    kept: list[np.ndarray] = []
    for column, kinds in used.items():
        if column not in sheet.columns:
            has = some([excerpt(name, 40) for name in sheet.columns], 12)
            raise DataError(
                "E403", f"{sheet.name} has no column {excerpt(column, 40)}, which the model reads; it has {has}."
            )
        values = sheet.columns[column]
        if kinds:
            kept += _spread(_known_words(sheet, column, kinds), kinds)
        elif (numbers := column_of_numbers(sheet, column, values)) is not None:
            kept.append(numbers)
        else:
            text = (
                f"{sheet.name}: column {excerpt(column, 40)} holds words such as {excerpt(cells.word(values[0]), 30)}"
            )
            raise DataError("E405", f"{text}; the model was trained on numbers there.")
    return stacked(kept)


def _known_words(sheet: Sheet, column: str, kinds: list[str]) -> np.ndarray:
    """A column of words, [N]. Raises DataError (E405) for missing ones, and one that training did not have."""
    _check_complete(sheet, column, sheet.columns[column])
    texts = cells.words(sheet.columns[column])
    unknown = ~np.isin(texts, kinds)
    if unknown.any():
        row = int(np.argmax(unknown))
        what = f"holds {excerpt(str(texts[row]), 30)} {sheet.where(row)} ({counted(int(unknown.sum()), 'such cell')})"
        raise DataError(
            "E405",
            f"{sheet.name}: column {excerpt(column, 40)} {what}, which the model has never seen; it knows "
            f"{some([excerpt(kind, 30) for kind in kinds], 12)}.",
        )
    return texts


def _remark(column: str, numbers: np.ndarray) -> str:
    return codes.remark(column, numbers) or (rounded.remark(f"'{column}'") if rounded.is_rounded(numbers) else "")


def _spread(texts: np.ndarray, kinds: list[str]) -> list[np.ndarray]:
    """A column of 0 and 1 for each kind of word; one column for two kinds."""
    return [texts == kind for kind in (kinds[1:] if len(kinds) == 2 else kinds)]


def stacked(columns: list[np.ndarray]) -> np.ndarray:
    """Columns [N] as float32 [N, columns]."""
    return np.stack([np.asarray(v, dtype=np.float64) for v in columns], axis=1).astype(np.float32)


def names_rows(column: str) -> bool:
    """Whether a column's name says that it numbers rows, if its values differ."""
    return _is_id(column) or column.strip().lower() in ROW_NUMBERS


def _is_id(column: str) -> bool:
    return "id" in (w.lower() for w in WORDS_OF_NAME.split(column))


def is_row_number(column: str, values: np.ndarray) -> bool:
    """Whether a column numbers the rows: by its name, if its values differ, or as whole numbers one after the other."""
    count = len(values)
    if count < 2:
        return False
    numbers = values.dtype.kind in "biuf"
    kinds = len(np.unique(values, equal_nan=False)) if numbers else len(set(values.tolist()))
    if kinds <= MOSTLY * count:
        return False
    if _is_id(column):
        return True
    if kinds < count:
        return False
    if column.strip().lower() in ROW_NUMBERS:
        return True
    if values.dtype.kind in "iu":
        return int(values.max()) - int(values.min()) == count - 1
    texts = values.tolist() if values.dtype.kind in "US" else []
    if not texts or not all(t.isascii() and t.isdigit() and len(t) < 19 for t in texts):
        return False
    whole = [int(t) for t in texts]
    return max(whole) - min(whole) == count - 1


def column_of_numbers(sheet: Sheet, column: str, values: np.ndarray) -> np.ndarray | None:
    """float64 [N], or None for a column of words. Raises DataError (E405) for missing and mistaken values."""
    if values.dtype.kind not in "biufOUS":
        return None
    _check_complete(sheet, column, values)
    numbers = values.astype(np.float64) if values.dtype.kind in "biuf" else _parsed(sheet, column, values)
    if numbers is None:
        return None
    with np.errstate(invalid="ignore"):
        large = np.abs(numbers) > LARGEST
    if large.any():
        row = int(np.argmax(large))
        value: Any = values[row]
        what = "which is no finite number" if "inf" in str(value).lower() else "which is too large for float32"
        raise DataError(
            "E405",
            f"{sheet.name}: column '{column}' holds {value} {sheet.where(row)}, {what} ({counted(int(large.sum()), 'such cell')}); "
            "correct it, or leave the row out.",
        )
    return numbers


def _check_complete(sheet: Sheet, column: str, values: np.ndarray) -> None:
    """Raises DataError (E405) for missing values."""
    if (missing := cells.missing(values)).any():
        row = int(np.argmax(missing))
        raise DataError(
            "E405",
            f"{sheet.name}: column '{column}' has no value {sheet.where(row)} ({int(missing.sum()):,} are missing); fill it, "
            "or leave these rows or the column out.",
        )


def _parsed(sheet: Sheet, column: str, values: np.ndarray) -> np.ndarray | None:
    """The numbers in a column of texts, float64 [N], None for a column of words."""
    texts = [str(v).strip() for v in values.tolist()]
    if sheet.decimal_commas:
        row = cells.thousands_or_decimals(texts)
        if row is not None:
            raise DataError(
                "E405",
                f"{sheet.name}: column '{column}' holds {texts[row]} {sheet.where(row)}, in a file with decimal commas; write "
                "numbers without points for thousands, and with commas before decimals.",
            )
        texts = cells.with_decimal_points(texts)
    plain = cells.are_plain(texts)
    if plain.all():
        return np.array(texts).astype(np.float64)
    like = cells.look_like_numbers(texts)
    if like.mean() <= MOSTLY:
        return None
    row = int(np.argmin(plain))
    others = int((~plain).sum())
    raise DataError(
        "E405",
        f"{sheet.name}: column '{column}' holds numbers but {excerpt(str(values[row]), 30)} {sheet.where(row)} "
        f"({counted(others, 'such cell')} of {len(texts):,}); write plain numbers such as 1234.5, or leave the rows or the "
        "column out.",
    )
