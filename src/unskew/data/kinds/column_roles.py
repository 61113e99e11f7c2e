"""Which column of a table holds the labels, the target or the sites, and which one divides the rows.

    labels   the column that is named; else the first one called label, target, class, y ...; else the last
             column, unless it looks like dates, row numbers, or values to be predicted
    sites    the first column with a usual name, such as site, hospital or client. Whole numbers stay as they
             are, words are numbered in alphabetical order.
    parts    a column `split` of train, test and val

Letters: N rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.files.tree import PART_NAMES
from unskew.data.kinds.features import column_of_numbers, is_row_number
from unskew.data.kinds.labels import SPELLINGS, label_names
from unskew.data.samples.conversion import array_of, is_mapped
from unskew.data.samples.dataset import Target
from unskew.data.samples.intake import Note, abbreviate, quantity
from unskew.errors import DataError, excerpt, suggestion

SITE_NAMES = (
    *("site", "client", "domain", "hospital", "centre", "center", "institution"),
    *("subject", "patient", "speaker", "user", "scanner", "device"),
)
"""Usual names of columns of sites; the first that a set has counts as its sites."""


def site_column_in(columns: Mapping[str, Any]) -> str:
    """The column of sites by usual names, "" without one."""
    lower = {name.lower(): name for name in columns}
    return next((lower[name] for name in SITE_NAMES if name in lower), "")


def site_column_of(sheet: Sheet, columns: Sequence[str], site: str, group: str) -> str:
    """The column of sites among these: the one that is named, else one with a usual name that is not that of
    groups; "" without one. Raises DataError (E403) for a column that does not exist."""
    if site:
        return column_named(dict.fromkeys(columns), site, sheet.name)
    return site_column_in(dict.fromkeys(c for c in columns if c != group))


def number_columns(
    name: str, columns: Mapping[str, Any] | None, test_columns: Mapping[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """(columns of the training samples, columns of the test samples, names of the values of columns of
    words).

    Raises DataError (E403) for a column with missing values or of another shape than [N].
    """
    train = {n: _check_column(name, n, v) for n, v in (columns or {}).items()}
    test = {n: _check_column(name, n, v) for n, v in (test_columns or {}).items()}
    words: dict[str, tuple[str, ...]] = {}
    for column in train:
        parts = [part[column] for part in (train, test) if column in part]
        if any(v.dtype.kind in "US" for v in parts):
            distinct, codes = np.unique(np.concatenate([v.astype(str) for v in parts]), return_inverse=True)
            words[column] = tuple(map(str, distinct))
            train[column], test_codes = codes[: len(parts[0])], codes[len(parts[0]) :]
            if len(parts) > 1:
                test[column] = test_codes
    return train, test, words


def _check_column(name: str, column: str, values: Any) -> np.ndarray:
    v = array_of(values)
    v = np.array(v) if is_mapped(v) else v
    if v.ndim != 1:
        raise DataError(
            "E403", f"{name}: column '{column}' is {list(v.shape)}; it must hold one value per sample, [N]."
        )
    missing = cells.missing(v)
    if missing.any():
        raise DataError(
            "E403",
            f"{name}: column '{column}' has no value for sample {int(np.argmax(missing))} "
            f"({int(missing.sum()):,} are missing); fill it, or leave these samples out.",
        )
    if v.dtype.kind == "f" and (v == np.round(v)).all():
        return v.astype(np.int64)
    return cells.words(v) if v.dtype.kind in "OUS" else v


PART_COLUMNS = ("split", "part", "subset", "partition")


def part_column(
    columns: Mapping[str, np.ndarray], excluded: Iterable[str], name: str
) -> tuple[str, np.ndarray | None]:
    """(the column of parts, its words train, test and val, [N]), or ("", None) without one.

    A column with such a name but none of these words is an ordinary column. excluded: columns with another
    purpose. name: name of the table. Raises DataError (E403) if the column also has other words.
    """
    for column in (
        c
        for c in columns
        if c.lower() in PART_COLUMNS and c not in excluded and columns[c].dtype.kind in "OUS"
    ):
        words = cells.words(columns[column])
        kinds = {word: PART_NAMES.get(word.strip().lower(), "") for word in set(words.tolist())}
        if not any(kinds.values()):
            continue
        if unknown := sorted(word for word, part in kinds.items() if not part):
            text = (
                f"column '{column}' divides the rows, and holds {excerpt(unknown[0], 30)} beside train and"
                " test"
            )
            raise DataError("E403", f"{name}: {text}; write train, test or val.")
        return column, np.array([kinds[word] for word in words.tolist()])
    return "", None


def validation_notes(validation: int) -> list[Note]:
    """The note that a number of rows are for validation."""
    return (
        [("left out", f"{quantity(validation, 'row')} for validation: choose settings with validation=0.1")]
        if validation
        else []
    )


LABEL_NAMES = ("label", "target", "class", "y", "category", "labels", "diagnosis", "outcome")
"""Usual names of a column of labels, the likeliest first."""
NEIGHBOURS = 50
"""Number of columns before and behind the labels that are compared with them."""
BINARY_WORDS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


def label_column_in(columns: Mapping[str, Any]) -> str:
    """The column of labels by usual names, "" without one."""
    lower = {str(c).lower(): c for c in columns}
    return next((lower[n] for n in LABEL_NAMES if n in lower), "")


def column_named(columns: Mapping[str, Any], column: str, name: str) -> str:
    """The column of this name. Raises DataError (E403) if there is none."""
    column = column if column in columns else cells.word(column)
    if column not in columns:
        names = abbreviate(list(map(str, columns)), 12)
        raise DataError(
            "E403", f"{name} has no column '{column}'; it has: {names}.{suggestion(column, columns)}"
        )
    return column


def label_column(
    sheet: Sheet, label: str, classes: Sequence[str] | None, notes: list[Note]
) -> tuple[str, np.ndarray]:
    """(the column of labels, its values [N], whole numbers in one spelling); adds to the notes.

    label: the column that the user names, or "". classes: names of all classes if they are known.
    Raises DataError: E403 for a column that does not exist, E404 for values that cannot be classes.
    """
    columns = sheet.columns
    column = (
        column_named(columns, label, sheet.name) if label else label_column_in(columns) or list(columns)[-1]
    )
    values = columns[column]
    _check_one_hot(sheet, column)
    _check_missing(sheet, column, classes)
    is_guess = not label and not label_column_in(columns)
    if values.dtype.kind in "US" or (
        values.dtype.kind == "O" and all(isinstance(v, str) for v in values.tolist())
    ):
        values = cells.words(values)
        if classes is None:
            values = _numbers_in_one_spelling(sheet, column, values, is_guess, notes)
    if is_guess:
        _check_guess(sheet, column, values)
    rivals = [c for c in columns if c.lower() in LABEL_NAMES and c != column] if not label else []
    source = f"from the column '{column}'"
    if is_guess:
        source += ", the last; label=NAME chooses another"
    elif rivals:
        source += f"; '{abbreviate(rivals)}' counts as a feature, label={rivals[0]} chooses it"
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
            f"{sheet.name}: column '{column}' has no label {sheet.where(row)}{_cell_text(values[row])}"
            f" ({int(missing.sum()):,} are missing); fill it in, or leave these rows out.",
        )


def _cell_text(value: Any) -> str:
    return f", only {excerpt(str(value), 20)}" if isinstance(value, str) and value.strip() else ""


def _numbers_in_one_spelling(
    sheet: Sheet, column: str, values: np.ndarray, is_guess: bool, notes: list[Note]
) -> np.ndarray:
    """Labels as words; if all are whole numbers, `01` and `1.0` become `1`. Raises DataError (E404) for
    fractions."""
    texts = values.tolist()
    if sheet.numbers:
        texts = sheet.numbers.plain(texts)
    elif sheet.decimal_commas:
        texts = cells.with_decimal_points(texts)
    if not cells.are_plain(texts).all():
        return values
    fraction = next((i for i, t in enumerate(texts) if float(t) % 1), None)
    if fraction is not None:
        hint = (
            f" Or name the column of labels, label=COLUMN, out of {abbreviate(list(sheet.columns), 12)}."
            if is_guess
            else ""
        )
        raise DataError(
            "E404",
            f"{sheet.name}: the label {sheet.where(fraction)}, column '{column}', is"
            f" {excerpt(texts[fraction], 20)}; numbers with fractions ask for regression: name the column as"
            f" the target, target={column}.{hint}",
        )
    plain = np.array([cells.canonical(t) for t in texts])
    if len(set(plain.tolist())) < len(set(texts)):
        notes.append(("labels", SPELLINGS))
    return plain


def _check_guess(sheet: Sheet, column: str, values: np.ndarray) -> None:
    """Raises DataError (E404) if the last column cannot be one of labels."""
    kinds = len(set(values.tolist()))
    too_many = kinds > max(2, len(values) / 2)
    dates = values.dtype.kind == "M" or all(cells.is_date(str(v)) for v in values.tolist())
    if too_many or dates or is_row_number(column, values):
        reason = "holds dates" if dates else f"has {kinds:,} different values in {len(values):,} rows"
        raise DataError(
            "E404",
            f"{sheet.name} has no column called label, target, class or y, and the last, '{column}',"
            f" {reason};"
            f" name the column of labels, label=COLUMN, out of {abbreviate(list(sheet.columns), 12)}.",
        )


def _check_one_hot(sheet: Sheet, column: str) -> None:
    """Raises DataError (E404) if the labels are one of several one-hot columns."""
    group = _one_hot_columns(sheet.columns, column)
    if group:
        raise DataError(
            "E404",
            f"{sheet.name}: '{column}' is one of {len(group)} columns ({abbreviate(group, 4)}) of which every"
            " row has a single 1, so they hold one label together; put the name of the class into one"
            " column, in pandas: frame['label'] = frame[COLUMNS].idxmax(axis=1), and remove them.",
        )


def _one_hot_columns(columns: Mapping[str, np.ndarray], label: str) -> list[str]:
    """The neighbouring columns of 0 and 1, including the labels, that sum to one in every row; [] without
    any. Of several such runs, that of the first and the most columns."""
    names = list(columns)
    position = names.index(label)
    label_bits = _binary_column(columns[label])
    if label_bits is None or len(np.unique(label_bits)) < 2:
        return []
    bits = {position: label_bits}
    for step in (-1, 1):
        for place in range(position + step, position + step * (NEIGHBOURS + 1), step):
            if not 0 <= place < len(names) or (column := _binary_column(columns[names[place]])) is None:
                break
            bits[place] = column
    first, bits_CN = min(bits), np.stack([bits[place] for place in sorted(bits)])
    for begin in range(first, position + 1):
        sums_CN = np.cumsum(bits_CN[begin - first :], axis=0)
        for end in range(first + len(bits), max(position, begin + 1), -1):
            if (sums_CN[end - begin - 1] == 1).all():
                return names[begin:end]
    return []


def _binary_column(values: np.ndarray) -> np.ndarray | None:
    """A column of 0 and 1, or of False and True, as int16 [N]; None for any other."""
    if values.dtype.kind in "biuf":
        plain = ((values == 0) | (values == 1)).all() and not (
            values.dtype.kind == "f" and np.signbit(values).any()
        )
        return values.astype(np.int16) if plain else None
    bits = [BINARY_WORDS.get(str(v).lower()) for v in values.tolist()]
    return None if None in bits else np.array(bits, dtype=np.int16)


def names_columns(columns: Mapping[str, Any], target: str) -> bool:
    """Whether a target names several columns of a table, and not one column with commas in its name."""
    return len(label_names(target)) > 1 and target not in columns


def multilabel_columns(sheet: Sheet, target: str) -> tuple[tuple[str, ...], np.ndarray]:
    """(the columns that a target names, their values, [N, L]).

    Raises DataError: E403 for a column that does not exist, E404 for one of words or named twice, E405 for
    missing values.
    """
    columns = tuple(column_named(sheet.columns, name, sheet.name) for name in label_names(target))
    if twice := next((c for c in columns if columns.count(c) > 1), ""):
        raise DataError("E404", f"{sheet.name}: the target names the column '{twice}' twice.")
    values = [column_of_numbers(sheet, c, sheet.columns[c]) for c in columns]
    if words := next((c for c, v in zip(columns, values) if v is None), ""):
        raise DataError(
            "E404",
            f"{sheet.name}: the label '{words}' holds words; write 1 where it is there and 0 elsewhere.",
        )
    return columns, np.stack([v for v in values if v is not None], axis=1)


def target_column(sheet: Sheet, target: Target) -> tuple[str, np.ndarray]:
    """(the column that a target names, its numbers, float64 [N]).

    Raises DataError: E403 for a column that does not exist, E404 for one of words, E405 for missing and
    mistaken values.
    """
    column = column_named(sheet.columns, target.name, sheet.name)
    values = column_of_numbers(sheet, column, sheet.columns[column])
    if values is None:
        raise DataError(
            "E404",
            f"{sheet.name}: the target '{column}' holds words, such as"
            f" {excerpt(str(sheet.columns[column][0]), 30)}; a target is a number. Words are classes:"
            f" label={column}.",
        )
    return column, values
