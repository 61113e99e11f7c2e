"""Sets, partitions and who is available."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unskew.data.federation import Dataset, Federation, Index
from unskew.data.partitions import Skew, column_names, deal_tests, partition
from unskew.data.sets import arrays, describe, folder, load, npz, parse

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = [
    "Dataset",
    "Federation",
    "Index",
    "arrays",
    "build",
    "describe",
    "folder",
    "load",
    "npz",
    "parse",
    "partition",
]


def build(
    dataset: Dataset, skew: str, clients: int, rng: Generator, rng_tests: Generator, samples: int | None = None
) -> Federation:
    """Deal a set out to clients. Without a column to go by, the test set is dealt in the clients' proportions."""
    rows = partition(skew, dataset.y, clients, rng, samples, dataset.columns)
    names: tuple[str, ...] | None = None
    by_site: Index | None = None
    if Skew.parse(skew).kind in ("domain", "column"):
        column, values = column_names(skew, dataset.columns)
        known = dataset.labels.get(column)
        names = tuple(known[int(v)] if known else f"{column}-{v}" for v in values)
        by_site = _tests_of_sites(dataset.test_columns.get(column), values)
    d = dataset
    made = Federation(d.name, d.x, d.y, d.x_test, d.y_test, d.classes, rows, Index.of([]), skew, names=names)
    if by_site is None:
        return replace(made, test=deal_tests(d.y_test, made.label_counts, rng_tests))
    return replace(made, test=by_site, natural=len(by_site.rows) == len(d.y_test))


def _tests_of_sites(column: np.ndarray | None, values: np.ndarray) -> Index | None:
    """Test rows by the site they come from, or None if no training site appears in the test set.

    Sites that appear only in the test set (held-out subjects, say) belong to nobody.
    """
    if column is None:
        return None
    place = np.searchsorted(values, column).clip(max=len(values) - 1)
    owner = np.where(values[place] == column, place, -1)
    return Index.by_owner(owner, len(values)) if (owner >= 0).any() else None
