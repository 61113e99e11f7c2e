"""Which column of a table holds the labels, the target, the sites or the groups, and which divides the rows.

    labels   the column that is named; else the first one called label, target, class, y ...; else the last
             column, unless it looks like dates, row numbers, or values to be predicted
    sites    the first column with a usual name, such as site, hospital or client. Whole numbers stay as they
             are, words are numbered in alphabetical order.
    parts    a column `split` of train, test and val
    groups   a column that the user names

Samples of one group belong together, such as the rows of a patient or the windows of a recording: a model
that has trained on one of them recognises the next one, so a test set with others scores memory. A user names
the groups by a column, by a value for each sample, or by a pattern of file names. Without groups, a column,
folders or file names that look like the ids of several samples each are pointed out before training.

Letters: N rows, C columns, G groups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.files.folder_tree import PART_NAMES
from unskew.data.files.sheets import Sheet
from unskew.data.kinds.features import (
    MOST_KINDS,
    NAME_SEPARATOR,
    NUMBER_SHARE,
    column_of_numbers,
    is_row_number,
)
from unskew.data.kinds.labels import SPELLINGS
from unskew.data.samples.conversion import array_of, is_mapped
from unskew.data.samples.dataset import Target
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError, UsageError, excerpt, suggestion
from unskew.formats.specs import split_names

SITE_NAMES = (
    *("site", "client", "domain", "hospital", "centre", "center", "institution"),
    *("subject", "patient", "speaker", "user", "scanner", "device"),
)
"""Usual names of columns of sites; the first that a set has counts as its sites."""


def site_column_in(columns: Iterable[str]) -> str:
    """The column of sites by usual names, "" without one."""
    lower = {name.lower(): name for name in columns}
    return next((lower[name] for name in SITE_NAMES if name in lower), "")


def site_column_of(sheet: Sheet, columns: Sequence[str], site: str, group: str) -> str:
    """The column of sites among these: the one that is named, else one with a usual name that is not that of
    groups; "" without one. Raises DataError (E403) for a column that does not exist."""
    return (
        column_named(columns, site, sheet.name) if site else site_column_in(c for c in columns if c != group)
    )


def number_columns(
    name: str, columns: Mapping[str, Any] | None, test_columns: Mapping[str, Any] | None, group: str = ""
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """(columns of the training samples, columns of the test samples, names of the values of columns of
    words). group: the column of groups, of which both parts get one spelling.

    Raises DataError (E403) for a column with missing values or of another shape than [N].
    """
    train = {n: _check_column(name, n, v) for n, v in (columns or {}).items()}
    test = {n: _check_column(name, n, v) for n, v in (test_columns or {}).items()}
    words: dict[str, tuple[str, ...]] = {}
    for column in train:
        parts = [part[column] for part in (train, test) if column in part]
        if any(v.dtype.kind in "US" for v in parts):
            joined = np.concatenate([v.astype(str) for v in parts])
            joined = one_spelling(joined) if column == group else joined
            distinct, codes = np.unique(joined, return_inverse=True)
            words[column] = tuple(map(str, distinct))
            train[column], test_codes = codes[: len(parts[0])], codes[len(parts[0]) :]
            if len(parts) > 1:
                test[column] = test_codes
    return train, test, words


def _check_column(name: str, column: str, values: Any) -> np.ndarray:
    v = array_of(values)
    v = np.array(v) if is_mapped(v) else v
    if v.ndim != 1:
        remedy = "it must hold one value per sample, [N]"
        raise DataError("E403", f"{name}: column '{column}' is {list(v.shape)}; {remedy}.")
    if (missing := cells.missing(v)).any():
        fault = f"column '{column}' has no value for sample {int(np.argmax(missing))}"
        remedy = f"({int(missing.sum()):,} are missing); fill it, or leave these samples out"
        raise DataError("E403", f"{name}: {fault} {remedy}.")
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
    for column in (c for c in columns if c.lower() in PART_COLUMNS and c not in excluded):
        if columns[column].dtype.kind not in "OUS":
            continue
        words = cells.words(columns[column])
        kinds = {word: PART_NAMES.get(word.strip().lower(), "") for word in set(words.tolist())}
        if not any(kinds.values()):
            continue
        if unknown := sorted(word for word, part in kinds.items() if not part):
            fault = f"column '{column}' divides the rows, and holds {excerpt(unknown[0], 30)}"
            raise DataError("E403", f"{name}: {fault} beside train and test; write train, test or val.")
        return column, np.array([kinds[word] for word in words.tolist()])
    return "", None


NEIGHBOURS = 50
"""Number of columns on each side of the labels that may be classes, too."""
LABEL_NAMES = ("label", "target", "class", "y", "category", "labels", "diagnosis", "outcome")
"""Usual names of a column of labels, the likeliest first."""


def label_column_in(columns: Iterable[str]) -> str:
    """The column of labels by usual names, "" without one."""
    lower = {str(c).lower(): c for c in columns}
    return next((lower[n] for n in LABEL_NAMES if n in lower), "")


def column_named(columns: Iterable[str], column: str, name: str) -> str:
    """The column of this name. Raises DataError (E403) if there is none."""
    columns = list(columns)
    column = column if column in columns else cells.word(column)
    if column not in columns:
        names = abbreviate(list(map(str, columns)), 12)
        hint = suggestion(column, columns)
        raise DataError("E403", f"{name} has no column '{column}'; it has: {names}.{hint}")
    return column


def _check_one_hot(sheet: Sheet, label: str) -> None:
    """Raises DataError (E404) if the label is one of neighbouring columns of which every row has a single 1.
    As features, the others would give it away."""
    names = list(sheet.columns)
    place = names.index(label)
    near = names[max(0, place - NEIGHBOURS) : place + NEIGHBOURS + 1]
    bits = (
        {name: _bits(sheet.columns[name]) for name in near} if _bits(sheet.columns[label]) is not None else {}
    )
    for begin in range(near.index(label) + 1 if bits else 0):
        total: Any = 0
        for end, name in enumerate(near[begin:], begin + 1):
            if (ones := bits[name]) is None:
                break
            total = total + ones
            if label in near[begin:end] and end > begin + 1 and (total == 1).all():
                group = abbreviate(near[begin:end], 4)
                fault = f"every row has a single 1 in the columns {group}, so they hold one label together"
                remedy = "put the name of the class into one column, and remove them"
                raise DataError("E404", f"{sheet.name}: {fault}; {remedy}.")


def _bits(values: np.ndarray) -> np.ndarray | None:
    """A column of 0 and 1, int [N]; None for any other column."""
    is_number = values.dtype.kind in "biuf"
    values = values if is_number else np.char.lower(cells.words(values))
    is_one = np.isin(values, (1,) if is_number else ("1", "1.0", "true"))
    both = is_one | np.isin(values, (0,) if is_number else ("0", "0.0", "false"))
    return is_one.astype(int) if both.all() else None


def label_column(
    sheet: Sheet, label: str, classes: Sequence[str] | None, notes: list[Note]
) -> tuple[str, np.ndarray]:
    """(the column of labels, its values [N], whole numbers in one spelling); adds to the notes.

    label: the column that the user names, or "". classes: names of all classes if they are known.
    Raises DataError: E403 for a column that does not exist, E404 for values that cannot be classes.
    """
    columns, usual = sheet.columns, label_column_in(sheet.columns)
    column = column_named(columns, label, sheet.name) if label else usual or list(columns)[-1]
    values, is_guess = columns[column], not label and not usual
    _check_one_hot(sheet, column)
    missing = cells.missing(values)
    if missing.any():
        missing &= ~np.isin(values.astype(str), list(map(str, classes or ())))
    if missing.any():
        row = int(np.argmax(missing))
        cell = f", only {excerpt(str(values[row]), 20)}" if str(values[row]).strip() else ""
        fault = f"column '{column}' has no label {sheet.where(row)}{cell}"
        remedy = f"({int(missing.sum()):,} are missing); fill it in, or leave these rows out"
        raise DataError("E404", f"{sheet.name}: {fault} {remedy}.")
    others = f"out of {abbreviate(list(columns), 12)}"
    if values.dtype.kind in "US" or all(isinstance(v, str) for v in values.tolist()):
        values = cells.words(values)
        texts = sheet.plain_numbers(values.tolist()) if classes is None else [""]
        if cells.are_plain(texts).all():
            fraction = next((i for i, t in enumerate(texts) if float(t) % 1), None)
            if fraction is not None:
                fault = f"the label {sheet.where(fraction)}, column '{column}', is {texts[fraction]}"
                remedy = (
                    f"a number with fractions is a target, target={column}; or name the column of labels,"
                )
                raise DataError("E404", f"{sheet.name}: {fault}; {remedy} label=COLUMN, {others}.")
            values = np.array([cells.canonical(t) for t in texts])
            if len(set(values.tolist())) < len(set(texts)):
                notes.append(("labels", SPELLINGS))
    source = f"from the column '{column}'"
    if is_guess:
        kinds = len(set(values.tolist()))
        dates = values.dtype.kind == "M" or all(cells.is_date(str(v)) for v in values.tolist())
        if dates or kinds > max(2, len(values) / 2) or is_row_number(column, values):
            fault = f"no column called label, target, class or y, and the last, '{column}',"
            reason = "holds dates" if dates else f"has {kinds:,} different values in {len(values):,} rows"
            remedy = "name the column of labels, label=COLUMN"
            raise DataError("E404", f"{sheet.name} has {fault} {reason}; {remedy}, {others}.")
        source += ", the last; label=NAME chooses another"
    elif rivals := [c for c in columns if c.lower() in LABEL_NAMES and c != column and not label]:
        source += f"; '{abbreviate(rivals)}' counts as a feature, label={rivals[0]} chooses it"
    notes.append(("labels", source))
    return column, values


def names_columns(columns: Mapping[str, Any], target: str) -> bool:
    """Whether a target names several columns of a table, and not one column with commas in its name."""
    return len(split_names(target)) > 1 and target not in columns


def multilabel_columns(sheet: Sheet, target: str) -> tuple[tuple[str, ...], np.ndarray]:
    """(the columns that a target names, their values, [N, L]).

    Raises DataError: E403 for a column that does not exist, E404 for one of words or named twice, E405 for
    missing values.
    """
    columns = tuple(column_named(sheet.columns, name, sheet.name) for name in split_names(target))
    if twice := next((c for c in columns if columns.count(c) > 1), ""):
        raise DataError("E404", f"{sheet.name}: the target names the column '{twice}' twice.")
    return columns, np.stack(
        [target_numbers(sheet, c, "1 where it is there and 0 elsewhere") for c in columns], 1
    )


def target_column(sheet: Sheet, target: Target) -> tuple[str, np.ndarray]:
    """(the column that a target names, its numbers, float64 [N]).

    Raises DataError: E403 for a column that does not exist, E404 for one of words, E405 for missing and
    mistaken values.
    """
    column = column_named(sheet.columns, target.name, sheet.name)
    return column, target_numbers(sheet, column, f"a number; words are classes: label={column}")


def target_numbers(sheet: Sheet, column: str, remedy: str) -> np.ndarray:
    """The numbers of a column of targets, float64 [N]. Raises DataError: E404 for words, E405 for missing
    values."""
    values = column_of_numbers(sheet, column, sheet.columns[column])
    if values is None:
        example = excerpt(str(sheet.columns[column][0]), 30)
        raise DataError("E404", f"{sheet.name}: '{column}' holds words, such as {example}; write {remedy}.")
    return values


INDEPENDENT = "none"
"""The value of `group` that says that samples are independent."""
GROUP_COLUMN = "group"
"""The column of groups that have no column of their own."""
ID_WORDS = frozenset(
    (
        *("id", "pid", "eid", "mrn", "patient", "subject", "subj", "participant", "person", "proband"),
        *("animal", "speaker", "user", "recording", "session", "family", "household"),
        *("ids", "pids", "patients", "subjects", "participants", "speakers"),
    )
)
"""Words in the names of columns that identify what a sample was taken from. The plurals are those that do not
also count something, as `sessions` does."""
NO_ID_WORDS = frozenset(name for name in SITE_NAMES if name not in ID_WORDS) | frozenset(
    ("train", "test", "data", "part", "shard", "file", "chunk", "batch", "fold")
)
"""Words in the names of files of many rows that are sites, or pieces of one table."""
_NUMBER_SUFFIX = re.compile(r"(?<=...)(en)?(id|code|nr|number|nummer)$")
"""What may follow in one word: `patientid`, `Patientennummer`."""
REPEATED_SHARE = 0.1
"""The share of samples with a value that another sample has, above which values count as ids of groups."""
FEWEST_FILE_GROUPS = 5
"""With fewer different numbers, file names say something else than a group, such as a fold."""
FEWEST_FOLDERS = 10
"""Fewer folders with files of several classes are sites."""
SEPARATORS = "-_. "
SIDE = "[A-Za-z]{0,5}"
"""What may follow a number in the name of a file: the `L` of 001L, the `left` of 7left."""


def is_id_name(column: str) -> bool:
    """Whether a column has the name of an identifier, such as `patient_id`."""
    words = [word.lower() for word in NAME_SEPARATOR.split(column)]
    words = [_NUMBER_SUFFIX.sub("", word) for word in dict.fromkeys((*words, "".join(words)))]
    return words[-1] == "case" or not ID_WORDS.isdisjoint(words)


def group_setting(group: str, site: str) -> str:
    """The groups that a user names; `none` if a column of ids is named as the sites, so that no question
    remains."""
    return group or (INDEPENDENT if site and is_id_name(site) else "")


def overlap_warning(groups: np.ndarray, test_groups: np.ndarray, column: str) -> list[Note]:
    """A warning if test samples are of groups that are trained on. groups, test_groups: [N] each."""
    count = int(np.isin(test_groups, groups).sum())
    if not count:
        return []
    text = (
        f"{count:,} of {quantity(len(test_groups), 'test sample')} are of groups that are also trained on"
        f" ('{column}'), so test scores may be too high; move each group to one side of the split"
    )
    return [("warning", text)]


def column_question(
    columns: Mapping[str, np.ndarray],
    test: np.ndarray | None = None,
    numbered: Collection[str] | None = None,
) -> list[Note]:
    """The question whether the values of a column are groups: of one with the name of ids, else of one with
    so many words that it is no feature, or of `numbered`; of several such columns, that with the fewest
    values.

    columns: values of all samples, [N] each. test: which samples are in the given test set, bool [N], None
    without one. numbered: columns of numbers that identify something; by default those that do by the facts
    in these columns (`number_ids`).
    """
    numbered = number_ids(columns, columns) if numbered is None else numbered
    ids = {
        column: one_spelling(values)
        for column, values in columns.items()
        if column in numbered or is_question(column, values)
    }
    numbers = {column: len(np.unique(values)) for column, values in ids.items()}
    for column in sorted(numbers, key=lambda column: (not is_id_name(column), numbers[column])):
        kind = f"values in '{column}'"
        if numbers[column] > 2 and (note := _question(ids[column], test, "row", kind, column)):
            return [note]
    return []


def is_question(column: str, values: np.ndarray) -> bool:
    """Whether a column may be one of groups by its name, or because its words are too many for a feature."""
    if values.dtype.kind == "f":  # pandas turns whole numbers into floats where one is missing
        known = values[~np.isnan(values)]
        return is_id_name(column) and bool((known == np.rint(known)).all())
    return values.dtype.kind in "biuOUS" and (is_id_name(column) or _is_wide(column, values))


def one_spelling(values: np.ndarray) -> np.ndarray:
    """The values of a column of groups, [N], with one spelling for each: `0012`, `12` and `12.0` are one
    group, as they are one label. Each is spelled as the first of its spellings in alphabetical order."""
    if values.dtype.kind not in "OUS":
        return values
    distinct, codes = np.unique(cells.words(values), return_inverse=True)
    first = dict[str, str]()
    return np.array([first.setdefault(cells.canonical(word), word) for word in distinct.tolist()])[codes]


def _is_wide(column: str, values: np.ndarray) -> bool:
    """Whether a column that does not name sites holds words of too many kinds for a feature."""
    if values.dtype.kind not in "OUS" or column.lower() in SITE_NAMES:
        return False
    words = cells.words(values).tolist()
    return len(set(words)) > MOST_KINDS and cells.look_like_numbers(words[:1000]).mean() <= NUMBER_SHARE


FIRST_ROWS, MOST_COLUMNS, CHANCE = 2_000, 50, 1e-9
"""Rows and columns in which ids without a name are searched, and the largest probability that their facts
agree by chance. Tables with more columns of many whole numbers hold counts or pixels."""


def number_ids(columns: Mapping[str, np.ndarray], facts: Mapping[str, np.ndarray]) -> list[str]:
    """The columns of whole numbers that identify what the rows were taken from, though no name says so: some
    fact, such as the sex of a patient, is the same in all rows of a number, which chance does not explain,
    and does not follow from the size of the number, as an age group does. Both by column, [N] each."""
    codes_of = {column: repeated_numbers(column, values) for column, values in columns.items()}
    numbers = {column: codes for column, codes in codes_of.items() if codes is not None}
    if not numbers or len(numbers) > MOST_COLUMNS:
        return []
    coded = {
        fact: np.unique(cells.words(facts[fact][:FIRST_ROWS]), return_inverse=True)[1]
        for fact in list(facts)[:MOST_COLUMNS]
    }
    return [
        column
        for column, codes in numbers.items()
        if any(_is_fact_of(codes, values) for fact, values in coded.items() if fact != column)
    ]


def repeated_numbers(column: str, values: np.ndarray) -> np.ndarray | None:
    """The whole numbers in the first rows of a column that may be ids, numbered from 0 by their size; None
    for any other column."""
    numbers = _whole_numbers(values[:FIRST_ROWS])
    if numbers is None or column.lower() in SITE_NAMES:
        return None
    _, codes, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    repeated = counts[counts > 1].sum() >= REPEATED_SHARE * len(numbers)
    return codes if repeated and len(counts) > MOST_KINDS else None


def _whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """A column of whole numbers as float64 [N]; None for any other."""
    if values.dtype.kind in "OUS":
        texts = [str(v).strip() for v in values.tolist()]
        values = np.array(texts) if all(t.isascii() and t.isdigit() for t in texts) else np.array([np.nan])
    numbers = values.astype(np.float64) if values.dtype.kind in "iufUS" else np.array([np.nan])
    return numbers if len(numbers) and (numbers == np.rint(numbers)).all() else None


def _is_fact_of(ids: np.ndarray, fact: np.ndarray) -> bool:
    """Whether a column, [N], is a fact about what the ids, [N], stand for. Both are numbered from 0, ids in
    the order of their values."""
    order = np.argsort(ids, kind="stable")
    same = ids[order][1:] == ids[order][:-1]
    differs = fact[order][1:] != fact[order][:-1]
    counts, share = np.bincount(ids), np.bincount(fact) / len(fact)
    if (same & differs).any() or differs.sum() <= 2 * (len(share) - 1):
        return False
    agree = (share[:, None] ** counts[counts > 1]).sum(0)
    return bool(np.log(agree).sum() < np.log(CHANCE))


def _question(ids: np.ndarray, test: np.ndarray | None, noun: str, kind: str, choice: str) -> Note | None:
    """The question about these ids, [N]; if no test row has one that is trained on, about the training rows,
    of which a part may be held back."""
    _, counts = np.unique(ids, return_counts=True)
    if counts[counts > 1].sum() < REPEATED_SHARE * len(ids):
        return None
    text = f"{quantity(len(ids), noun)} have {len(counts):,} different {kind}"
    if test is not None:
        shared = int(np.isin(ids[test], ids[~test]).sum())
        if not shared:
            return _question(ids[~test], None, f"training {noun}", kind, choice)
        text += f", and {shared:,} of {quantity(int(test.sum()), f'test {noun}')} have one that is trained on"
    return ("warning", f"{text}; if they belong together say group={choice}, or group={INDEPENDENT}")


def named_groups(
    columns: Mapping[str, np.ndarray], group: str, paths: Sequence[str], name: str
) -> tuple[str, np.ndarray | None]:
    """(the column of groups, the group of each sample, [N]): the column that the user names or, where samples
    have paths, what a regular expression finds in them. (`none` or "", None) without groups.

    paths: the path of each sample's file, () without. name: of the table or folder, for messages. Raises
    DataError (E403) for a column that does not exist, and as `file_groups` does.
    """
    if group in ("", INDEPENDENT):
        return group, None
    if paths and group not in columns:
        return GROUP_COLUMN, file_groups(paths, group, name)
    column = column_named(columns, group, name)
    return column, columns[column]


def file_groups(paths: Sequence[str], pattern: str, where: str) -> np.ndarray:
    """The group of each file, [N]: the first match of a regular expression, or of the bracket in it, in its
    name; in its path if not every name has one.

    paths: paths of files below the folder. where: the folder, for messages.
    Raises UsageError (E125) for a pattern that is no regular expression, DataError (E404) for files without a
    match, and for a word that all have.
    """
    setting = f"group={excerpt(pattern, 40)} is no column"
    names = [path.rpartition("/")[2] for path in paths]
    try:
        matches = [re.search(pattern, name) for name in names]
        if not all(matches):
            matches = [re.search(pattern, path) for path in paths]
    except re.error as error:
        raise UsageError("E125", f"{where}: {setting}, and no regular expression ({error}).") from None
    if unmatched := [name for name, match in zip(names, matches) if match is None]:
        fault = f"{setting}, and is found in no part of {unmatched[0]}"
        count = f"{quantity(len(unmatched), 'such file')} of {len(names):,}"
        remedy = "write a regular expression for what the names of one group share, such as 'P[0-9]+'"
        raise DataError("E404", f"{where}: {fault} ({count}); {remedy}.")
    groups = np.array([match[match.re.groups and 1] for match in matches if match])
    if (groups == pattern).all():
        remedy = f"write an expression for what differs, such as '{pattern}_?[0-9]+'"
        raise DataError("E404", f"{where}: {setting}, and the names of all files have it; {remedy}.")
    return groups


def file_question(
    paths: Sequence[str],
    labels: np.ndarray,
    test: np.ndarray | None,
    site: np.ndarray | None = None,
    stems: Sequence[str] = (),
) -> list[Note]:
    """The question whether files of one folder belong together, as `P03/1.png` and `P03/2.png` may, or files
    with one number in their names: `P03_1.png` and `P03_2.png`.

    paths: of files below the folder, without the names of parts, one for each sample: a table's is repeated
    for each row. labels: classes, [N], or other labels. test: as for `column_question`. site: the site of
    each sample, [N]. stems: names in which to search for numbers; by default those of the files.
    """
    is_class = labels.ndim == 1 and labels.dtype.kind != "f"
    y = np.unique(labels, return_inverse=True)[1] if is_class else np.zeros(len(paths), np.int64)
    number = {path: i for i, path in enumerate(dict.fromkeys(paths))}
    files, file_of = list(number), np.array([number[path] for path in paths])
    names = stems or [re.sub(r"(\.nii)?\.[^.]*$", "", path.rpartition("/")[2]) for path in files]
    if len(files) < len(paths) and not all(map(_identifies, names)):
        return []
    candidates = [*_folders_of(files, file_of, y, site), *_numbers_of(files, file_of, names)]
    candidates = [c for c in candidates if _are_groups(c, y)]
    # a patient may have one class, while a slice's number says nothing about it
    fewest = min((_classes_of_each(c.ids, y) for c in candidates), default=0)
    best = [c for c in candidates if _classes_of_each(c.ids, y) == fewest]
    if not best:
        return []
    best.sort(key=lambda c: -len(np.unique(c.ids)))
    kind = f"{best[0].kind}, such as {excerpt(str(best[0].ids[0]), 30)}"
    choices = " or group=".join(dict.fromkeys(_choice(c, files, file_of) for c in best))
    note = _question(best[0].ids, test, "file" if len(files) == len(paths) else "row", kind, choices)
    return [note] if note else []


def _identifies(name: str) -> bool:
    """Whether the name of a file of many rows may identify what they were taken from: it has a number, and
    words other than those of sites and of pieces of a table."""
    words = {*re.split("[^a-z]+", name.lower())} - {""}
    return bool(words) and words.isdisjoint(NO_ID_WORDS) and re.search("[0-9]", name) is not None


@dataclass(frozen=True)
class _FileGroups:
    """What may be the groups of samples. ids: of each sample's file, [N]. keys: with the folder above, [N]:
    several samples have one key. fewest: the smallest number of groups. choices: values of `group` that may
    find them."""

    ids: np.ndarray
    keys: np.ndarray
    kind: str
    fewest: int
    choices: tuple[str, ...]


def _are_groups(candidate: _FileGroups, y: np.ndarray) -> bool:
    """Whether there are so many different ids that they are neither classes nor folds, of several files
    each. y: classes, [N]."""
    _, counts = np.unique(candidate.keys, return_counts=True)
    repeated = counts[counts > 1].sum() >= REPEATED_SHARE * len(y)
    return bool(repeated) and len(np.unique(candidate.ids)) >= max(candidate.fewest, len(np.unique(y)) + 1)


def _classes_of_each(ids: np.ndarray, y: np.ndarray) -> float:
    """The number of classes of one group, on average."""
    return len({*zip(ids.tolist(), y.tolist())}) / len(np.unique(ids))


def _folders_of(
    paths: Sequence[str], file_of: np.ndarray, y: np.ndarray, site: np.ndarray | None
) -> list[_FileGroups]:
    """The folders of each level as groups, and files of several samples; of several levels, the one with
    most. Sites are fewer than patients, and usually have several classes. file_of: the file of each sample,
    [N]."""
    levels = list[_FileGroups]()
    parts = [path.split("/") for path in paths]
    depth = min(map(len, parts))
    for level in range(depth if len(paths) < len(file_of) else depth - 1):
        ids = np.array([names[level] for names in parts])[file_of]
        of_one_class = y.any() and _classes_of_each(ids, y) == 1
        choices = ("site",) if site is not None and _divide_alike(ids, site) else ()
        pattern = f"'([^/]+){'/[^/]+' * (len(parts[0]) - 1 - level)}$'"
        keys = np.array(["/".join(names[: level + 1]) for names in parts])[file_of]
        fewest = FEWEST_FILE_GROUPS if of_one_class else FEWEST_FOLDERS
        kind = "folders" if level < depth - 1 else "files"
        levels.append(_FileGroups(ids, keys, kind, fewest, (*choices, pattern)))
    levels = [level for level in levels if _are_groups(level, y)]
    return sorted(levels, key=lambda level: len(np.unique(level.ids)))[-1:]


def _numbers_of(paths: Sequence[str], file_of: np.ndarray, names: Sequence[str]) -> list[_FileGroups]:
    """The numbers in names, of files or of folders, as groups, each with the letters before it and without a
    few after it: `slice1` and `patient03` of slice1_patient03, `001` of 001L, `P03` and `S2` of P03S2; where
    there is a single number, the letters. Numbers are parted from letters only where the names are of a few
    forms, which random ones such as `3fa85f64` are not."""
    number = re.compile(f"([^0-9]*[0-9]+){SIDE}")
    few_forms = len({re.sub("[0-9]+", "0", name) for name in names}) < FEWEST_FILE_GROUPS
    parted = f"(?<=[0-9])(?:{SIDE}[{SEPARATORS}]+{'|(?=[A-Za-z]+[0-9])' if few_forms else ''})"
    pieces = [re.split(parted, name) for name in names]
    matches = [[number.fullmatch(piece) for piece in of_name] for of_name in pieces]
    numbers = [[match[1] for match in takewhile(bool, of_name) if match] for of_name in matches]
    parts = [path.split("/") for path in paths]
    folders = [p[: p.index(name)] if name in p[:-1] else p[:-1] for p, name in zip(parts, names)]
    columns = [np.array(column) for column in zip(*numbers)]
    before = f"[^0-9]*[0-9]+(?:{SIDE}[{SEPARATORS}]+)?"
    patterns = [f"'^{before * i}([^0-9]*[0-9]+)'" for i in range(len(columns))]
    if columns and all(len(of_name) == 1 and name[-1].isdigit() for of_name, name in zip(pieces, names)):
        columns, patterns = [np.array([re.sub("[0-9]+$", "", name) for name in names])], ["'[^0-9]+'"]
    candidates = list[_FileGroups]()
    for ids, pattern in zip(columns, patterns):
        shapes = {re.sub("[0-9]+", "[0-9]+", text) for text in ids.tolist()}
        choices = (f"'{shapes.pop()}'", pattern) if len(shapes) == 1 else (pattern,)
        keys = np.array(["/".join((*f, text)) for f, text in zip(folders, ids.tolist())])[file_of]
        kind = "parts of their names"
        candidates.append(_FileGroups(ids[file_of], keys, kind, FEWEST_FILE_GROUPS, choices))
    return candidates


def _choice(candidate: _FileGroups, paths: Sequence[str], file_of: np.ndarray) -> str:
    """The value of `group` that finds these groups."""
    for choice in candidate.choices:
        with suppress(DataError, UsageError):
            if choice == "site":
                return choice
            if _divide_alike(file_groups(paths, choice.strip("'"), "")[file_of], candidate.ids):
                return choice
    return "REGULAR-EXPRESSION"


def _divide_alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two groupings of the same files, [N] each, are one."""
    pairs = {*zip(one.tolist(), other.tolist())}
    return len(pairs) == len(np.unique(one)) == len(np.unique(other))
