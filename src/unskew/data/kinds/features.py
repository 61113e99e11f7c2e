"""The columns of a table as numbers to train on.

    numbers                       as they are
    words in up to 20 kinds       a column of 0 and 1 for each kind (one column for two kinds)
    other words, row numbers      left out, with a note; refused as a separate input
    missing values, and other values in a column of numbers                 refused, with the line

Letters: N rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.samples.intake import Note, abbreviate, quantity
from unskew.errors import DataError, excerpt

ROW_NUMBERS = ("", "index", "row", "rownames", "row number", "unnamed: 0")
NAME_SEPARATOR = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")
MOST_KINDS = 20
NUMBER_SHARE = 0.5
"""Share of cells that look like numbers above which a column holds numbers, and other cells are mistakes.
A column called `id` with at least this share of distinct values holds row numbers."""
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


Kinds: TypeAlias = dict[str, list[str]]
"""For each column of features, the words that each became a column of 0 and 1; [] for numbers."""


@dataclass(frozen=True)
class Encoding:
    """The encoding of a column. kinds: as in `Kinds`; None if the column numbers the rows. unseen: words
    that only test rows have."""

    kinds: list[str] | None
    unseen: tuple[str, ...] = ()


def encode_features(
    sheet: Sheet, columns: Mapping[str, np.ndarray], notes: list[Note]
) -> tuple[np.ndarray, Kinds]:
    """(float32 [N, columns], the encoding of each column that is used); adds to the notes.

    columns: the feature columns of the sheet. Raises DataError: E403 if none can be used, E405 for missing
    values and for other cells than numbers in columns of numbers.
    """
    parts: dict[str, list[np.ndarray]] = {}

    def judge(column: str) -> Encoding:
        encoding, parts[column] = encode_column(sheet, column, columns[column])
        return encoding

    used = encodings_of(sheet, columns, judge, notes)
    return stack_columns([part for column in used for part in parts[column]]), used


def encodings_of(
    sheet: Sheet, columns: Iterable[str], judge: Callable[[str], Encoding], notes: list[Note]
) -> Kinds:
    """The encoding of each column that is used; adds to the notes. Raises DataError (E403) if none can be
    used."""
    used: Kinds = {}
    left_out: list[str] = []
    spread: list[str] = []
    for column in columns:
        encoding = judge(column)
        if encoding.kinds is None:
            left_out.append(f"'{column}' (numbers of rows)")
            continue
        if len(encoding.kinds) > MOST_KINDS:
            left_out.append(f"'{column}' ({len(encoding.kinds):,} different words)")
            continue
        used[column] = encoding.kinds
        if encoding.kinds:
            spread.append(f"'{column}' ({len(encoding.kinds)} kinds)")
        if encoding.unseen:
            notes.append(_unseen_note(f"column '{column}'", encoding))
    if left_out:
        notes.append(("left out", f"columns {abbreviate(left_out, 5)}"))
    if spread:
        notes.append(("note", f"words became columns of 0 and 1: {abbreviate(spread, 5)}"))
    if sheet.decimal_commas:
        notes.append(("note", "commas were read as decimal points, because semicolons separate the columns"))
    if not used:
        raise DataError("E403", f"{sheet.name} has no column of numbers beside its labels.")
    return used


def _unseen_note(subject: str, encoding: Encoding) -> Note:
    return "note", f"{subject} has {excerpt(abbreviate(list(encoding.unseen)), 60)} only in the test part"


def encode_column(sheet: Sheet, column: str, values: np.ndarray) -> tuple[Encoding, list[np.ndarray]]:
    """(the encoding of a column, the columns of numbers that it becomes, [N] each). Raises DataError
    (E405) as `column_of_numbers` does."""
    train = values if sheet.test is None else values[~sheet.test]
    if is_row_number(column, values) or is_row_number(column, train):
        return Encoding(None), []
    return encode_input(sheet, column, values)


def encode_input(sheet: Sheet, column: str, values: np.ndarray) -> tuple[Encoding, list[np.ndarray]]:
    """`encode_column` for a column that must be used; without columns if it has too many kinds of words."""
    if (numbers := column_of_numbers(sheet, column, values)) is not None:
        return Encoding([]), [numbers]
    train = values if sheet.test is None else values[~sheet.test]
    texts = cells.words(values)
    kinds = sorted(set(texts.tolist()))
    if len(kinds) > MOST_KINDS:
        return Encoding(kinds), []
    return Encoding(kinds, tuple(sorted(set(kinds) - {cells.word(v) for v in train.tolist()}))), _one_hot(
        texts, kinds
    )


def encode_as(sheet: Sheet, used: Kinds) -> np.ndarray:
    """float32 [N, columns] of another table, with columns found by name and encoded as `used` specifies.

    Raises DataError: E403 for a column that is missing, E405 for missing values, cells that are no numbers,
    and words that the column did not have in training.
    """
    parts: list[np.ndarray] = []
    for column, kinds in used.items():
        if column not in sheet.columns:
            names = abbreviate([excerpt(name, 40) for name in sheet.columns], 12)
            raise DataError(
                "E403",
                f"{sheet.name} has no column {excerpt(column, 40)}, which the model reads; it has {names}.",
            )
        values = sheet.columns[column]
        if kinds:
            parts += _one_hot(_words_in(sheet, column, kinds), kinds)
        elif (numbers := column_of_numbers(sheet, column, values)) is not None:
            parts.append(numbers)
        else:
            text = (
                f"{sheet.name}: column {excerpt(column, 40)} holds words such as"
                f" {excerpt(cells.word(values[0]), 30)}"
            )
            raise DataError("E405", f"{text}; the model was trained on numbers there.")
    return stack_columns(parts)


def _words_in(sheet: Sheet, column: str, kinds: list[str]) -> np.ndarray:
    """A column of words, [N]. Raises DataError (E405) for missing words, and for words that training did
    not have."""
    _check_complete(sheet, column, sheet.columns[column])
    texts = cells.words(sheet.columns[column])
    unknown = ~np.isin(texts, kinds)
    if unknown.any():
        row = int(np.argmax(unknown))
        fault = (
            f"holds {excerpt(str(texts[row]), 30)} {sheet.where(row)}"
            f" ({quantity(int(unknown.sum()), 'such cell')})"
        )
        raise DataError(
            "E405",
            f"{sheet.name}: column {excerpt(column, 40)} {fault}, which the model has never seen; it knows "
            f"{abbreviate([excerpt(kind, 30) for kind in kinds], 12)}.",
        )
    return texts


def _one_hot(texts: np.ndarray, kinds: list[str]) -> list[np.ndarray]:
    """A column of 0 and 1 for each kind of word; one column for two kinds."""
    return [texts == kind for kind in (kinds[1:] if len(kinds) == 2 else kinds)]


def stack_columns(columns: list[np.ndarray]) -> np.ndarray:
    """Columns [N] as float32 [N, columns]."""
    return np.stack([np.asarray(v, dtype=np.float64) for v in columns], axis=1).astype(np.float32)


def names_rows(column: str) -> bool:
    """Whether a column's name says that it numbers rows, if its values differ."""
    return _is_id(column) or column.strip().lower() in ROW_NUMBERS


def _is_id(column: str) -> bool:
    return "id" in (w.lower() for w in NAME_SEPARATOR.split(column))


def is_row_number(column: str, values: np.ndarray) -> bool:
    """Whether a column numbers the rows: by its name if its values differ, or as consecutive whole
    numbers."""
    count = len(values)
    if count < 2:
        return False
    numbers = values.dtype.kind in "biuf"
    kinds = len(np.unique(values, equal_nan=False)) if numbers else len(set(values.tolist()))
    if kinds <= NUMBER_SHARE * count:
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
    integers = [int(t) for t in texts]
    return max(integers) - min(integers) == count - 1


def column_of_numbers(sheet: Sheet, column: str, values: np.ndarray) -> np.ndarray | None:
    """float64 [N], or None for a column of words. Raises DataError (E405) for missing and mistaken values."""
    if values.dtype.kind not in "biufOUS":
        return None
    _check_complete(sheet, column, values)
    numbers = (
        values.astype(np.float64) if values.dtype.kind in "biuf" else _parse_numbers(sheet, column, values)
    )
    if numbers is None:
        return None
    with np.errstate(invalid="ignore"):
        large = np.abs(numbers) > LARGEST_FLOAT32
    if large.any():
        row = int(np.argmax(large))
        value: Any = values[row]
        fault = (
            "which is no finite number" if "inf" in str(value).lower() else "which is too large for float32"
        )
        raise DataError(
            "E405",
            f"{sheet.name}: column '{column}' holds {value} {sheet.where(row)}, {fault}"
            f" ({quantity(int(large.sum()), 'such cell')}); correct it, or leave the row out.",
        )
    return numbers


def _check_complete(sheet: Sheet, column: str, values: np.ndarray) -> None:
    """Raises DataError (E405) for missing values."""
    if (missing := cells.missing(values)).any():
        row = int(np.argmax(missing))
        raise DataError(
            "E405",
            f"{sheet.name}: column '{column}' has no value {sheet.where(row)} ({int(missing.sum()):,} are"
            " missing); fill it, or leave these rows or the column out.",
        )


def _parse_numbers(sheet: Sheet, column: str, values: np.ndarray) -> np.ndarray | None:
    """The numbers in a column of texts, float64 [N], None for a column of words."""
    texts = [str(v).strip() for v in values.tolist()]
    if (row := sheet.ambiguous_number(texts)) is not None:
        text = (
            f"column '{column}' holds {texts[row]} {sheet.where(row)}, which may be {float(texts[row]):g} or"
        )
        digits = texts[row].replace(".", "")
        how = "name the format, FILE(decimal='.') or FILE(thousands='.')"
        raise DataError("E405", f"{sheet.name}: {text} {digits}; {how}, or write plain numbers.")
    rewritten = texts
    if sheet.numbers:
        rewritten = sheet.numbers.plain(texts)
    elif sheet.decimal_commas:
        rewritten = cells.with_decimal_points(texts)
    plain = cells.are_plain(rewritten)
    if plain.all():
        return np.array(rewritten).astype(np.float64)
    numeric = cells.look_like_numbers(texts)
    if numeric.mean() <= NUMBER_SHARE:
        return None
    row = int(np.argmin(plain))
    count = int((~plain).sum())
    raise DataError(
        "E405",
        f"{sheet.name}: column '{column}' holds numbers but {excerpt(str(values[row]), 30)}"
        f" {sheet.where(row)} ({quantity(count, 'such cell')} of {len(texts):,}); write plain numbers such"
        " as 1234.5, name their format, such as FILE(decimal=',', thousands='.'), or leave the rows or the"
        " column out.",
    )


def encode_inputs(
    sheet: Sheet, columns: Sequence[str], notes: list[Note]
) -> tuple[dict[str, np.ndarray], Kinds]:
    """(these columns as numbers, [N] or, for words of several kinds, [N, kinds]; the encoding of each); adds
    to the notes.

    Raises DataError: E403 for words of too many kinds, E405 for missing values.
    """
    inputs: dict[str, np.ndarray] = {}
    used: Kinds = {}
    for column in columns:
        encoding, parts = encode_input(sheet, column, sheet.columns[column])
        used[column] = encoding.kinds or []
        if not parts:
            text = f"column '{column}' holds {len(used[column]):,} different words, too many for an input"
            raise DataError("E403", f"{sheet.name}: {text}; leave it out of x.")
        inputs[column] = stack_columns(parts)[:, 0] if len(parts) == 1 else stack_columns(parts)
        if used[column]:
            notes.append(("note", f"input '{column}': words became 0 and 1 ({len(used[column])} kinds)"))
        if encoding.unseen:
            notes.append(_unseen_note(f"input '{column}'", encoding))
    return inputs, used


def encode_inputs_as(sheet: Sheet, used: Kinds) -> dict[str, np.ndarray]:
    """The inputs from another table, encoded as `used` specifies. Raises DataError as `encode_as` does."""
    values = {column: encode_as(sheet, {column: kinds}) for column, kinds in used.items()}
    return {column: v[:, 0] if v.shape[1] == 1 else v for column, v in values.items()}
