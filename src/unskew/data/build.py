"""From a set to a federation: rows to clients, test rows to clients, and feature skew if the string asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unskew.data.dataset import Dataset, per_channel, strata
from unskew.data.deal import deal_tests
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.data.partitions import column_names, partition
from unskew.data.skew import Skew
from unskew.data.transforms import Shift, skew_features
from unskew.errors import DataError, UsageError


def build(
    dataset: Dataset,
    skew: str,
    clients: int,
    rng_partition: np.random.Generator,
    rng_test: np.random.Generator,
    samples: int | None = None,
    validation: float = 0.0,
    reserve: int = 0,
) -> Federation:
    """Deal a set out to clients. Without a column to go by, the test set is dealt in the clients' proportions.

    samples: see `partition`. validation: the share of its rows that every client holds back, rounded down, so that a
    client with few samples trains on all of them. reserve: samples of each class that the server keeps for itself,
    taken out first.
    """
    if not 0 <= validation < 1:
        raise UsageError("E109", f"validation should be at least 0 and below 1, got {validation}.")
    parsed = Skew.parse(skew)
    shifts = [Shift.parse(text) for text in parsed.shifts]
    d = dataset
    reserved = _reserved(d, reserve, rng_partition)
    left = np.setdiff1d(np.arange(len(d.y)), reserved)
    columns = {name: values[left] for name, values in d.columns.items()}
    rows = partition(skew, d.y[left], clients, rng_partition, samples=samples, columns=columns)
    rows = Index(left[rows.rows], rows.offsets)
    train, val = _held_back(rows, validation, rng_partition) if validation else (rows, Index.empty(0))
    names, sites = _sites(d, skew) if parsed.kind in ("domain", "column") else (None, None)
    made = Federation(
        d.name,
        d.x,
        d.y,
        d.x_test,
        d.y_test,
        d.classes,
        train,
        sites or Index.empty(len(train)),
        skew,
        natural=sites is not None and len(sites.rows) == len(d.y_test),
        names=names,
        val=val,
        mean=d.mean,
        std=d.std,
        columns=d.columns,
        reserved=reserved,
    )
    if parsed.kind not in ("domain", "column"):
        counts = made.sizes[:, None] if made.masks else made.label_counts
        made = replace(made, test=deal_tests(strata(d.y_test), counts, rng_test))
    return _shifted(made, shifts, d) if shifts else made


def _reserved(d: Dataset, each: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of `each` samples of every class, ascending. Raises DataError (E406) where a class has too few to spare."""
    if not each:
        return np.zeros(0, np.int64)
    least = int(np.bincount(d.y, minlength=len(d.classes)).min())
    if least <= each:
        raise DataError("E406", f"{each} samples of each class are to be held back; one class has {least} in all.")
    of_class = (np.flatnonzero(d.y == c) for c in range(len(d.classes)))
    return np.sort(np.concatenate([rng.permutation(rows)[:each] for rows in of_class]))


def _sites(d: Dataset, skew: str) -> tuple[tuple[str, ...], Index | None]:
    """Names of the clients a column makes, and their test rows; None if no training site appears in the test set."""
    column, values = column_names(skew, d.columns)
    known = d.labels.get(column)
    names = tuple(known[int(v)] if known else f"{column}-{v}" for v in values)
    return names, _tests_of_sites(d.test_columns.get(column), values)


def _tests_of_sites(column: np.ndarray | None, values: np.ndarray) -> Index | None:
    """Test rows by the site they come from. Sites that appear only in the test set belong to nobody."""
    if column is None:
        return None
    place = np.searchsorted(values, column).clip(max=len(values) - 1)
    owner = np.where(values[place] == column, place, -1)
    return Index.by_owner(owner, len(values)) if (owner >= 0).any() else None


def _held_back(index: Index, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """(what is left, a random share of each client's rows)."""
    order = np.lexsort((rng.random(len(index.rows)), index.owner))
    place = np.arange(len(order)) - index.offsets[:-1][index.owner]
    picked = np.zeros(len(order), dtype=bool)
    picked[order] = place < np.floor(share * index.sizes)[index.owner]
    return _only(index, ~picked), _only(index, picked)


def _only(index: Index, keep: np.ndarray) -> Index:
    sizes = np.bincount(index.owner[keep], minlength=len(index))
    return Index(index.rows[keep], np.concatenate([[0], np.cumsum(sizes)]))


def _shifted(f: Federation, shifts: list[Shift], d: Dataset) -> Federation:
    """Every client with samples of its own, changed; samples that two clients share become two."""
    if isinstance(d.x, np.memmap):
        raise DataError("E406", f"{f.name} is mapped from a file; a feature skew needs a set that fits into memory.")
    rows = np.concatenate([f.train.rows, f.val.rows])
    x, x_test = _natural(d.x[rows], d), _natural(d.x_test, d).copy()
    y, y_test = f.y[rows], f.y_test.copy()
    unit = bool(len(x)) and x.min() > -1e-5 and x.max() < 1 + 1e-5
    begin = len(f.train.rows)
    train = Index(np.arange(begin), f.train.offsets)
    val = Index(np.arange(begin, len(rows)), f.val.offsets)
    for stream, (values, labels, index) in enumerate(((x, y, train), (x, y, val), (x_test, y_test, f.test))):
        for k in np.flatnonzero(index.sizes).tolist():
            mine = values[index[k]]
            for i, shift in enumerate(shifts):
                mine = skew_features(mine, k, shift, unit=unit, stream=3 * i + stream)
                if f.masks and shift.kind == "rotate90":  # a mask lies where its image lies
                    labels[index[k]] = np.rot90(labels[index[k]], k % 4, axes=(-2, -1))
            values[index[k]] = mine
    kept = np.arange(len(rows), len(rows) + len(f.reserved))
    rows = np.concatenate([rows, f.reserved])
    columns = {name: values[rows] for name, values in f.columns.items()}
    x, x_test = np.concatenate([_standard(x, d), d.x[f.reserved]]), _standard(x_test, d)
    y = np.concatenate([y, f.y[f.reserved]])
    return replace(f, x=x, y=y, x_test=x_test, y_test=y_test, train=train, val=val, columns=columns, reserved=kept)


def _natural(x: np.ndarray, d: Dataset) -> np.ndarray:
    if d.taken_off is None:
        return x
    mean, std = (per_channel(v, x.ndim) for v in d.taken_off)
    return x * std + mean


def _standard(x: np.ndarray, d: Dataset) -> np.ndarray:
    if d.taken_off is None:
        return x
    mean, std = (per_channel(v, x.ndim) for v in d.taken_off)
    return (x - mean) / std
