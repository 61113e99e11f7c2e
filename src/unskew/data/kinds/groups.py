"""Groups of samples that belong together, such as the rows of a patient or the windows of a recording.

A model that has trained on one sample of a patient recognises the next one, so a test set with other samples
of the same patients scores memory. A user names the groups: by a column, by a value for each sample, or by a
pattern of file names. Without groups, a column or file names that look like the ids of several samples each
are pointed out before training.

Letters: N samples, G groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from unskew.data.kinds.features import NAME_SEPARATOR
from unskew.data.samples.reading_notes import Note, quantity
from unskew.errors import DataError, UsageError, excerpt

INDEPENDENT = "none"
"""The value of `group` that says that samples are independent."""
GROUP_COLUMN = "group"
"""The column of groups that have no column of their own."""
ID_WORDS = frozenset(
    (
        *("id", "pid", "eid", "mrn", "patient", "subject", "subj", "participant", "person", "proband"),
        *("animal", "speaker", "user", "recording", "session", "family", "household"),
    )
)
"""Words in the names of columns that identify what a sample was taken from."""
_NUMBER_SUFFIX = re.compile(r"(?<=...)(en)?(id|code|nr|number|nummer)$")
"""What may follow in one word: `patientid`, `Patientennummer`."""
REPEATED_SHARE = 0.1
"""The share of samples with a value that another sample has, above which values count as ids of groups."""
FEWEST_FILE_GROUPS = 5
"""With fewer different beginnings, file names say something else than a group, such as a fold."""
SEPARATORS = "-_. "


def is_id_name(column: str) -> bool:
    """Whether a column's name says that it identifies what a sample was taken from."""
    words = [_NUMBER_SUFFIX.sub("", word.lower()) for word in NAME_SEPARATOR.split(column)]
    return words == ["case"] or not ID_WORDS.isdisjoint(words)


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


def column_question(columns: Mapping[str, np.ndarray], test: np.ndarray | None = None) -> list[Note]:
    """The question whether the values of a column are groups; of several such columns, that with the fewest
    values.

    columns: values of all samples, [N] each. test: which samples are in the given test set, bool [N], None
    without one.
    """
    ids = {
        column: values.astype(str) if values.dtype.kind in "OUS" else values
        for column, values in columns.items()
        if is_id_name(column) and values.dtype.kind in "biuOUS"
    }
    numbers = {column: len(np.unique(values)) for column, values in ids.items()}
    for column in sorted(numbers, key=numbers.__getitem__):
        kind = f"values in '{column}'"
        if numbers[column] > 2 and (note := _question(ids[column], test, "row", kind, column)):
            return [note]
    return []


def _question(ids: np.ndarray, test: np.ndarray | None, noun: str, kind: str, choice: str) -> Note | None:
    """The question about these ids, [N]."""
    _, counts = np.unique(ids, return_counts=True)
    if counts[counts > 1].sum() < REPEATED_SHARE * len(ids):
        return None
    text = f"{quantity(len(ids), noun)} have {len(counts):,} different {kind}"
    if test is not None:
        shared = int(np.isin(ids[test], ids[~test]).sum())
        if not shared:
            return None
        text += f", and {shared:,} of {quantity(int(test.sum()), f'test {noun}')} have one that is trained on"
    return ("warning", f"{text}; if they belong together say group={choice}, or group={INDEPENDENT}")


def file_groups(names: Sequence[str], pattern: str, where: str) -> np.ndarray:
    """The group of each file, [N]: the first match of a regular expression in its name, or of the bracket in
    it.

    names: names of files without folders. where: the folder, for messages.
    Raises UsageError (E125) for a pattern that is no regular expression, DataError (E404) for names without a
    match.
    """
    setting = f"group={excerpt(pattern, 40)} is no column"
    try:
        matches = [re.search(pattern, name) for name in names]
    except re.error as error:
        raise UsageError("E125", f"{where}: {setting}, and no regular expression ({error}).") from None
    if unmatched := [name for name, match in zip(names, matches) if match is None]:
        fault = f"{setting}, and is found in no part of {unmatched[0]}"
        count = f"{quantity(len(unmatched), 'such file')} of {len(names):,}"
        remedy = "write a regular expression for what the file names of one group share, such as 'P[0-9]+'"
        raise DataError("E404", f"{where}: {fault} ({count}); {remedy}.")
    return np.array([match[match.re.groups and 1] for match in matches if match])


def folder_question(ids: np.ndarray, labels: np.ndarray, test: np.ndarray | None) -> list[Note]:
    """The question whether files of one folder belong together, where each of many folders has files of one
    class, as in `CLASS/PATIENT/`: hospitals usually have several classes.

    ids: the folder of each file, [N]. labels, test: as for `file_question`.
    """
    classes = len(np.unique(labels))
    folders = len(np.unique(ids))
    pairs = {*zip(ids.tolist(), labels.tolist())} if labels.ndim == 1 else ()
    if len(pairs) != folders or folders < max(FEWEST_FILE_GROUPS, classes + 1):
        return []
    note = _question(ids, test, "file", f"folders of one class, such as {excerpt(str(ids[0]), 30)}", "site")
    return [note] if note else []


def file_question(names: Sequence[str], labels: np.ndarray, test: np.ndarray | None) -> list[Note]:
    """The question whether files with one beginning of their names, up to a number and a separator, belong
    together: `P03_1.png` and `P03_2.png`.

    labels: classes, [N]; beginnings that only repeat the class are no groups. test: as for `column_question`.
    """
    beginnings = [re.match(rf"[^0-9]*[0-9]+(?=[{SEPARATORS}].*[0-9A-Za-z].*\.)", name) for name in names]
    if not all(beginnings):
        return []
    ids = np.array([match[0] for match in beginnings if match])
    classes = len(np.unique(labels)) if labels.ndim == 1 and labels.dtype.kind in "biu" else 0
    if len({*ids.tolist()}) < max(FEWEST_FILE_GROUPS, classes + 1):
        return []
    shapes = {re.sub("[0-9]+", "[0-9]+", text) for text in ids.tolist()}
    pattern = shapes.pop() if len(shapes) == 1 else "[^0-9]*[0-9]+"
    note = _question(ids, test, "file", f"beginnings, such as {excerpt(str(ids[0]), 30)}", f"'{pattern}'")
    return [note] if note else []
