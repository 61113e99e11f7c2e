"""Sets, partitions and who is available."""

from __future__ import annotations

from collections.abc import Sequence
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
    natural = Skew.parse(skew).kind in ("domain", "column")
    names: Sequence[str] | None = None
    if natural:
        column, values = column_names(skew, dataset.columns)
        known = dataset.labels.get(column)
        names = tuple(known[int(v)] if known else f"{column}-{v}" for v in values)
    made = Federation(
        dataset.name,
        dataset.x,
        dataset.y,
        dataset.x_test,
        dataset.y_test,
        dataset.classes,
        rows,
        Index.of([]),
        skew,
        False,
        names,
    )
    tests = deal_tests(dataset.y_test, made.label_counts, rng_tests)
    if natural and column in dataset.test_columns:
        place = np.searchsorted(values, dataset.test_columns[column]).clip(max=len(values) - 1)
        owner = np.where(values[place] == dataset.test_columns[column], place, -1)
        if (owner >= 0).any():  # sites that appear only in the test set belong to nobody
            tests = Index.by_owner(owner, len(values))
            natural = bool((owner >= 0).all())
        else:
            natural = False
    else:
        natural = False
    return Federation(
        dataset.name,
        dataset.x,
        dataset.y,
        dataset.x_test,
        dataset.y_test,
        dataset.classes,
        rows,
        tests,
        skew,
        natural,
        names,
    )
