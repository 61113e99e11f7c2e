"""Which column of a table holds the labels, and the labels in it.

    named                   that column
    label, target, class, y ...    the first that there is
    neither                 the last column, unless it looks like dates, numbers of rows, or values to be predicted

Letters: N rows, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.data.intake import cells
from unskew.data.intake.features import is_row_number
from unskew.data.intake.labels import SPELLINGS
from unskew.data.intake.notes import Note, some
from unskew.data.intake.sheets import Sheet
from unskew.errors import DataError, excerpt, suggestion

LABELS = ("label", "target", "class", "y", "category", "labels", "diagnosis", "outcome")
"""What a column of labels may be called, the likeliest first."""
MOST_ONE_HOT = 50
"""Columns before and behind the labels that are compared with them."""
BITS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


def label_of(columns: Mapping[str, Any]) -> str:
    """The column that usual names say holds the labels, "" if none does."""
    lower = {str(c).lower(): c for c in columns}
    return next((lower[n] for n in LABELS if n in lower), "")


def column_named(columns: Mapping[str, Any], column: str, name: str) -> str:
    """The column itself. Raises DataError (E403) if there is none of this name."""
    column = column if column in columns else cells.word(column)
    if column not in columns:
        known = some(list(map(str, columns)), 12)
        raise DataError("E403", f"{name} has no column '{column}'; it has: {known}.{suggestion(column, columns)}")
    return column


def labels_of(sheet: Sheet, label: str, classes: Sequence[str] | None, notes: list[Note]) -> tuple[str, np.ndarray]:
    """(the column of labels, its values [N], whole numbers in one spelling).

    label: the column if it is named, else "". classes: names of all classes if they are known. Adds to the notes.
    Raises DataError: E403 for a column that is not there, E404 for values that cannot be classes.
    """
    columns = sheet.columns
    column = column_named(columns, label, sheet.name) if label else label_of(columns) or list(columns)[-1]
    values = columns[column]
    _check_one_hot(sheet, column)
    _check_missing(sheet, column, classes)
    guessed = not label and not label_of(columns)
    if values.dtype.kind in "US" or (values.dtype.kind == "O" and all(isinstance(v, str) for v in values.tolist())):
        values = cells.words(values)
        if classes is None:
            values = _numbers_in_one_spelling(sheet, column, values, guessed, notes)
    if guessed:
        _check_guess(sheet, column, values)
    others = [c for c in columns if c.lower() in LABELS and c != column] if not label else []
    for other in others:
        if _same(columns[other], values):
            raise DataError(
                "E404", f"{sheet.name}: columns '{column}' and '{other}' both hold the labels; remove one of them."
            )
    source = f"from the column '{column}'"
    if guessed:
        source += ", the last; label=NAME chooses another"
    elif others:
        source += f"; '{some(others)}' counts as a feature, label={others[0]} chooses it"
    notes.append(("labels", source))
    return column, values


def _check_missing(sheet: Sheet, column: str, classes: Sequence[str] | None) -> None:
    values = sheet.columns[column]
    missing = cells.missing(values)
    if missing.any():
        missing &= ~np.isin(values.astype(str), list(map(str, classes or ())))
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(
            "E404",
            f"{sheet.name}: column '{column}' has no label {sheet.where(row)}{_as_written(values[row])} ({int(missing.sum()):,} "
            "are missing); fill it in, or leave these rows out.",
        )


def _as_written(value: Any) -> str:
    return f", only {excerpt(str(value), 20)}" if isinstance(value, str) and value.strip() else ""


def _numbers_in_one_spelling(
    sheet: Sheet, column: str, values: np.ndarray, guessed: bool, notes: list[Note]
) -> np.ndarray:
    """Labels that are words, `01` and `1.0` as `1` where all are numbers. Raises DataError (E404) for fractions."""
    texts = values.tolist()
    if sheet.decimal_commas:
        texts = cells.with_decimal_points(texts)
    if not cells.are_plain(texts).all():
        return values
    fraction = next((i for i, t in enumerate(texts) if float(t) % 1), None)
    if fraction is not None:
        other = (
            f" Or name the column of labels, label=COLUMN, out of {some(list(sheet.columns), 12)}." if guessed else ""
        )
        raise DataError(
            "E404",
            f"{sheet.name}: the label {sheet.where(fraction)}, column '{column}', is {excerpt(texts[fraction], 20)}; numbers "
            f"with fractions ask for regression: name the column as the target, target={column}.{other}",
        )
    plain = np.array([cells.canonical(t) for t in texts])
    if len(set(plain.tolist())) < len(set(texts)):
        notes.append(("labels", SPELLINGS))
    return plain


def _check_guess(sheet: Sheet, column: str, values: np.ndarray) -> None:
    """Raises DataError (E404) where the last column cannot be one of labels."""
    kinds = len(set(values.tolist()))
    many = kinds > max(2, len(values) / 2)
    dates = values.dtype.kind == "M" or all(cells.is_date(str(v)) for v in values.tolist())
    if many or dates or is_row_number(column, values):
        why = "holds dates" if dates else f"has {kinds:,} different values in {len(values):,} rows"
        raise DataError(
            "E404",
            f"{sheet.name} has no column called label, target, class or y, and the last, '{column}', {why}; name the column of "
            f"labels, label=COLUMN, out of {some(list(sheet.columns), 12)}.",
        )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether each value of one column stands beside one of the other and the reverse."""
    pairs = set(zip(map(str, one.tolist()), map(str, other.tolist())))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def _check_one_hot(sheet: Sheet, column: str) -> None:
    """Raises DataError (E404) where labels are one of several columns of 0 and 1 of which each row has a single 1."""
    group = _one_hot(sheet.columns, column)
    if group:
        raise DataError(
            "E404",
            f"{sheet.name}: '{column}' is one of {len(group)} columns ({some(group, 4)}) of which every row has a single 1, so "
            "they hold one label together; put the name of the class into one column, in pandas: "
            "frame['label'] = frame[COLUMNS].idxmax(axis=1), and remove them.",
        )


def _one_hot(columns: Mapping[str, np.ndarray], label: str) -> list[str]:
    """The neighbouring columns of 0 and 1, the labels among them, that sum to one in every row; [] if there are none."""
    names = list(columns)
    at = names.index(label)
    first, last = at, at + 1
    own = _bits(columns[label])
    if own is None or len(np.unique(own)) < 2:
        return []
    bits = {at: own}
    while first > max(0, at - MOST_ONE_HOT) and (b := _bits(columns[names[first - 1]])) is not None:
        first -= 1
        bits[first] = b
    while last < min(len(names), at + MOST_ONE_HOT) and (b := _bits(columns[names[last]])) is not None:
        bits[last] = b
        last += 1
    sums_CN = np.cumsum([np.zeros_like(own), *(bits[i] for i in range(first, last))], axis=0)
    for begin in range(first, at + 1):
        for end in range(last, max(at, begin + 1), -1):
            few, full = (sums_CN[end - first, :n] - sums_CN[begin - first, :n] for n in (100, None))
            if (few == 1).all() and (full == 1).all():
                return names[begin:end]
    return []


def _bits(values: np.ndarray) -> np.ndarray | None:
    """A column of 0 and 1, or of False and True, as int16 [N]; None for any other."""
    if values.dtype.kind in "biuf":
        plain = ((values == 0) | (values == 1)).all() and not (values.dtype.kind == "f" and np.signbit(values).any())
        return values.astype(np.int16) if plain else None
    bits = [BITS.get(str(v).lower()) for v in values.tolist()]
    return None if None in bits else np.array(bits, dtype=np.int16)
