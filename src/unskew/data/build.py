"""From a set to a federation: training rows to clients, then validation rows, test rows and feature shifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unskew.data.dataset import Dataset, strata
from unskew.data.deal import deal_tests
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.data.shifting import shifted
from unskew.data.skew import Skew, partition
from unskew.data.skews.column import Column
from unskew.errors import DataError, UsageError


def build(
    dataset: Dataset,
    skew: str,
    clients: int,
    rng_partition: np.random.Generator,
    rng_test: np.random.Generator,
    *,
    samples: int | None = None,
    validation: float = 0.0,
    reserve: int = 0,
) -> Federation:
    """A set dealt out to clients.

    The test set is dealt to the clients in proportion to their training samples of each class, or tenth of a target; where the skew makes
    clients of a column, by that column.
    skew, clients, samples: see `partition`. validation: the share of its rows that every client holds back, rounded
    down, so that a client with few samples trains on all of them. reserve: samples of each class that the server keeps
    for itself, taken out first.
    Raises UsageError (E103, E109) and DataError (E406, E407) as `partition` does.
    """
    if not 0 <= validation < 1:
        raise UsageError("E109", f"validation must be at least 0 and below 1; got {validation}.")
    parsed = Skew.parse(skew)
    by_column = parsed.partition if isinstance(parsed.partition, Column) else None
    reserved = _reserved(dataset, reserve, rng_partition)
    left = np.setdiff1d(np.arange(len(dataset.y)), reserved)
    columns = {name: values[left] for name, values in dataset.columns.items()}
    rows = partition(skew, dataset.y[left], clients, rng_partition, samples=samples, columns=columns)
    rows = Index(left[rows.rows], rows.offsets)
    train, val = _held_back(rows, validation, rng_partition) if validation else (rows, Index.empty(0))
    tests = _tests_by_column(dataset, by_column) if by_column else None
    federation = replace(
        _undealt(dataset, skew, train),
        test=tests or Index.empty(len(train)),
        natural=tests is not None and len(tests.rows) == len(dataset.y_test),
        names=_names(dataset, by_column) if by_column else None,
        val=val,
        reserved=reserved,
    )
    if not by_column:
        federation = replace(
            federation, test=deal_tests(strata(dataset.y_test, dataset.y), _counts(federation), rng_test)
        )
    return shifted(federation, parsed.shifts, dataset) if parsed.shifts else federation


def _counts(federation: Federation) -> np.ndarray:
    """Training samples of every client and group by which test samples are dealt, int64 [K, groups]."""
    if federation.masks:
        return federation.sizes[:, None]
    if not federation.several:
        return federation.label_counts
    groups = federation.n_classes + 1  # its rarest label, or none
    flat = federation.train.owner * groups + strata(federation.y)[federation.train.rows]
    return np.bincount(flat, minlength=federation.clients * groups).reshape(-1, groups)


def _undealt(dataset: Dataset, skew: str, train: Index) -> Federation:
    """A federation with the set's samples and these training rows, in which no client has test rows."""
    return Federation(
        dataset.name,
        dataset.x,
        dataset.y,
        dataset.x_test,
        dataset.y_test,
        dataset.classes,
        train,
        Index.empty(len(train)),
        skew,
        mean=dataset.mean,
        std=dataset.std,
        columns=dataset.columns,
        intake=dataset.intake,
        applied=dataset.applied,
        target=dataset.target,
        layout=dataset.layout,
    )


def _reserved(dataset: Dataset, each: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of `each` samples of every class, ascending. Raises DataError (E406) if a class has too few."""
    if not each:
        return np.zeros(0, np.int64)
    if dataset.target or dataset.several:
        what = "a target has no classes" if dataset.target else "a sample has several labels"
        raise DataError("E406", f"{each} samples of each class are to be held back, but {what}.")
    least = int(np.bincount(dataset.y, minlength=len(dataset.classes)).min())
    if least <= each:
        raise DataError("E406", f"{each} samples of each class are to be held back, but one class has only {least}.")
    of_class = (np.flatnonzero(dataset.y == c) for c in range(len(dataset.classes)))
    return np.sort(np.concatenate([rng.permutation(rows)[:each] for rows in of_class]))


def _names(dataset: Dataset, by_column: Column) -> tuple[str, ...]:
    """The clients' names: those of the column's values, or `column-value`."""
    names = dataset.labels.get(by_column.column)
    values = by_column.values(dataset.columns)
    return tuple(names[int(v)] if names else f"{by_column.column}-{v}" for v in values)


def _tests_by_column(dataset: Dataset, by_column: Column) -> Index | None:
    """Test rows by client; values that only the test set has belong to no client. None if no row belongs to any."""
    column = dataset.test_columns.get(by_column.column)
    if column is None:
        return None
    values = by_column.values(dataset.columns)
    place = np.searchsorted(values, column).clip(max=len(values) - 1)
    owner = np.where(values[place] == column, place, -1)
    return Index.by_owner(owner, len(values)) if (owner >= 0).any() else None


def _held_back(index: Index, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """(the rows that are left, a random share of each client's rows)."""
    order = np.lexsort((rng.random(len(index.rows)), index.owner))
    place = np.arange(len(order)) - index.offsets[:-1][index.owner]
    held = np.zeros(len(order), dtype=bool)
    held[order] = place < np.floor(share * index.sizes)[index.owner]
    return _only(index, ~held), _only(index, held)


def _only(index: Index, keep: np.ndarray) -> Index:
    sizes = np.bincount(index.owner[keep], minlength=len(index))
    return Index(index.rows[keep], np.concatenate([[0], np.cumsum(sizes)]))
