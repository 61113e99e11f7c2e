"""Warnings about a data set that a user should read before training, and statistics of its sites.

leaks       columns of a table that give the label away: one value for each class, or the target rescaled
imbalance   nearly all samples are of one class, so that a model that always answers it has a high accuracy
sites       two sites whose values lie in very different ranges
partition   classes that no client holds, and clients without samples

A column counts as a leak only if every sample that is examined agrees; a good predictor is none.
Letters: n samples that are examined, D columns, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.kinds.column_roles import site_column_in
from unskew.data.samples.dataset import Dataset, strata
from unskew.data.samples.reading_notes import abbreviate, quantity
from unskew.data.storage.sample_rows import is_streamed, select_samples
from unskew.errors import excerpt

SITE_SAMPLES = 200
"""Number of evenly spaced samples of a site from which its range of values is computed."""
RANGE_RATIO = 4.0
"""Ratio of two sites' ranges above which they count as differently scaled."""


@dataclass(frozen=True)
class Site:
    """The training samples of a site.

    low, high: the smallest and largest value. spread: the median over samples of the range of a sample's
    values. shares: the share of each class among the samples, or among the pixels of masks.
    """

    name: str
    samples: int
    low: float
    high: float
    spread: float
    shares: tuple[float, ...]


def site_column(dataset: Dataset | Federation) -> str:
    """The column by which the set was divided, else the first with a usual name for sites; "" without
    either."""
    column = dataset.intake.divided if dataset.intake else ""
    others = {name: values for name, values in dataset.columns.items() if name != dataset.group_column}
    return column if column in dataset.columns else site_column_in(others)


def rows_of_sites(data: Dataset | Federation) -> list[tuple[str, np.ndarray]]:
    """(name, training rows) of each site of a set with a column of sites, or of a federation with clients
    that are sites; else none."""
    if isinstance(data, Federation):
        clients = enumerate(data.train) if data.natural else ()
        return [(data.name_of(k), rows) for k, rows in clients]
    column = site_column(data)
    if not column:
        return []
    values, names = data.columns[column], data.labels.get(column)
    distinct = np.unique(values).tolist()
    return [(names[int(v)] if names else str(v), np.flatnonzero(values == v)) for v in distinct]


def sites_of(data: Dataset | Federation) -> list[Site]:
    """The sites of a set or federation; see `rows_of_sites`."""
    return [_site_of(data, name, rows) for name, rows in rows_of_sites(data)]


def _site_of(data: Dataset | Federation, name: str, rows: np.ndarray) -> Site:
    counts = np.zeros(len(data.classes), np.int64)
    for row in range(0, 0 if data.target else len(rows), SITE_SAMPLES):
        block = np.asarray(data.y[rows[row : row + SITE_SAMPLES]])
        counts += block.sum(0) if data.several else np.bincount(block[block >= 0], minlength=len(counts))
    block = np.asarray(data.x[rows[:: max(1, len(rows) // SITE_SAMPLES)]])
    block = block.reshape(len(block), data.x[0].size)
    low, high = (block.min(1), block.max(1)) if len(block) else (np.zeros(1), np.zeros(1))
    shares = counts / max(1, counts.sum())
    return Site(
        name,
        len(rows),
        float(low.min()),
        float(high.max()),
        float(np.median(high - low)),
        tuple(shares.tolist()),
    )


def different_ranges(sites: list[Site]) -> tuple[Site, Site] | None:
    """The sites of the smallest and the largest range of values, if these differ more than fourfold."""
    by_spread = sorted((site for site in sites if site.spread > 0), key=lambda site: site.spread)
    if not by_spread or by_spread[-1].spread <= RANGE_RATIO * by_spread[0].spread:
        return None
    return by_spread[0], by_spread[-1]


LEAK_SAMPLES, LEAK_VALUES = 5_000, 1 << 22
"""Maximal number of evenly spaced samples that are examined, and of values in them."""
LEAK_MINIMUM, MINORITY_MINIMUM = 20, 10
"""Smallest numbers of samples, or different targets, and of samples outside the most frequent class;
below, columns may agree by chance."""
LINE_TOLERANCE = 1e-5
"""Distance from a line that still counts as linear, as a share of the range; float32 has seven digits."""


def leaks(dataset: Dataset | Federation) -> str:
    """The warning about columns that give the label away; "" if none does, or if samples are not rows of
    numbers."""
    if dataset.x.ndim != 2 or dataset.masks or len(dataset.y) < LEAK_MINIMUM:
        return ""
    columns = list(_column_spans(dataset))
    if not columns:
        return ""
    limit = min(LEAK_SAMPLES, max(LEAK_MINIMUM, LEAK_VALUES // max(1, dataset.x.shape[1])))
    rows = np.unique(np.linspace(0, len(dataset.x) - 1, min(limit, len(dataset.x))).astype(np.int64))
    columns = _leaking(select_samples(dataset.x, rows)[:], dataset.y[rows], columns, bool(dataset.target))
    if columns and not is_streamed(dataset.x):  # confirm the suspects with all samples
        columns = _leaking(dataset.x, dataset.y, columns, bool(dataset.target))
    if not columns:
        return ""
    tells = "has a value of its own for each class"
    if dataset.several or dataset.target:
        tells = "tells a label by itself" if dataset.several else "is the target in another unit"
    names = abbreviate([name for name, *_ in columns])
    text = f"{'each of ' if len(columns) > 1 else ''}{names} {tells} in all training samples"
    return f"{text}: leave out what was made from the labels, or scores mean nothing"


def _column_spans(dataset: Dataset | Federation) -> Iterator[tuple[str, int, int]]:
    """(name of a column, first and last position of its numbers in a sample)."""
    form = dataset.intake.form if dataset.intake else {}
    if dataset.layout:
        yield from ((f"input {e.name}", start, end) for e, start, end in dataset.layout.places if e.size == 1)
        return
    if form.get("kind") != "table":
        yield from ((f"column {i}", i, i + 1) for i in range(dataset.x.shape[1]))
        return
    start = 0
    for column, kinds in form["columns"]:
        end = start + column_width(kinds)
        yield f"column {excerpt(column, 40)}", start, end
        start = end


def column_width(kinds: Sequence[str]) -> int:
    """How many numbers a column of a table becomes. kinds: its words, empty for numbers; two words make
    one number."""
    return 1 if len(kinds) in (0, 2) else len(kinds)


def _column_codes(part: np.ndarray) -> np.ndarray:
    """One number for each sample, [n]: the column's number, or the index of its word."""
    return part[:, 0] if part.shape[1] == 1 else part.argmax(1).astype(np.float32)


def _leaking(
    x: np.ndarray, y: np.ndarray, columns: list[tuple[str, int, int]], numbers: bool
) -> list[tuple[str, int, int]]:
    """The columns that give the labels away; with several labels a sample, any one of the labels."""
    x_nD = np.stack([_column_codes(x[:, start:end]) for _, start, end in columns], axis=1)
    tells = _are_linear(x_nD, y) if numbers else np.zeros(len(columns), bool)
    for labels in () if numbers else np.atleast_2d(y.T):
        tells |= _one_value_each(x_nD, labels)
    return [column for column, flag in zip(columns, tells) if flag]


def _one_value_each(x_nD: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which columns have one value in all samples of a class, and a different value in each class, bool
    [D]."""
    _, first, place, count = np.unique(y, return_index=True, return_inverse=True, return_counts=True)
    if len(count) < 2 or len(y) < LEAK_MINIMUM or len(y) - count.max() < MINORITY_MINIMUM:
        return np.zeros(x_nD.shape[1], bool)
    of_class_CD = x_nD[first]
    tells = (x_nD == of_class_CD[place]).all(0)
    tells[tells] = [len(np.unique(values)) == len(count) for values in of_class_CD[:, tells].T]
    return tells


def _are_linear(x_nD: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which columns are a linear function of the target, bool [D]."""
    if len(np.unique(y)) < LEAK_MINIMUM:
        return np.zeros(x_nD.shape[1], bool)
    low, high = int(y.argmin()), int(y.argmax())
    begin_D = x_nD[low].astype(np.float64)
    range_D = x_nD[high] - begin_D
    line_nD = begin_D + range_D * ((y - y[low]) / (y[high] - y[low]))[:, None]
    return (np.abs(x_nD - line_nD) <= LINE_TOLERANCE * np.abs(range_D)).all(0) & (range_D != 0)


MAJORITY_SHARE = 0.9
"""The share of samples in one class above which a warning is given."""
IMBALANCE_METRICS = "auroc,balanced_accuracy"


def class_imbalance(data: Dataset | Federation) -> str:
    """The warning about a set with one dominant class; "" for any other set, or without a single class a
    sample."""
    if data.target or data.several or data.masks or not len(data.y):
        return ""
    counts = np.bincount(data.y, minlength=len(data.classes))
    share = counts.max() / counts.sum()
    if not MAJORITY_SHARE <= share < 1:
        return ""
    often, present = int(counts.argmax()), np.flatnonzero(counts)
    rare = int(present[counts[present].argmin()])
    text = f"{share:.1%} of the training samples are of class {excerpt(data.classes[often], 40)}, so a model"
    rarest = f"{excerpt(data.classes[rare], 40)} has {counts[rare]:,}"
    hint = f"Look at --metrics {IMBALANCE_METRICS} as well"
    return f"{text} that always answers so has that accuracy; {rarest}. {hint}"


def partition_warnings(federation: Federation) -> list[str]:
    """Warnings about classes, or tenths of a target, that no client holds, and about clients without
    samples."""
    texts, y, y_test = list[str](), federation.y, federation.y_test
    held = np.zeros(len(y), bool)
    for rows in (federation.train.rows, federation.val.rows, federation.reserved):
        held[rows] = True
    groups, test_groups = strata(y), strata(y_test, y)
    counts = np.bincount(groups, minlength=len(federation.groups))
    absent = np.flatnonzero((counts > 0) & (np.bincount(groups[held], minlength=len(counts)) == 0))
    if len(absent):
        names = [*federation.groups, "no label"]
        noun = "targets" if federation.target else "class"
        which = f"{noun} {abbreviate([excerpt(names[c], 40) for c in absent])}"
        tests = int(np.isin(test_groups, absent).sum())
        more = f", and the common test set has {quantity(tests, 'sample')} of them" if tests else ""
        lost = f"{counts[absent].sum():,} of {len(y):,} training samples are left out{more}"
        remedy = "take more clients, more classes for each, or another skew"
        texts.append(f"no client holds {which}: {lost}; {remedy}")
    if empty := int((federation.sizes == 0).sum()):
        texts.append(f"{quantity(empty, 'client')} without samples: they receive the model and send nothing")
    return texts
