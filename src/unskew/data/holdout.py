"""Samples of a set held out: for a test set where it has none, or for validation.

The same rows are chosen at every call, whatever the seed of a run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unskew.data.dataset import Dataset, strata
from unskew.data.rounding import largest_remainder
from unskew.data.rows import chosen
from unskew.errors import DataError


def with_test_set(dataset: Dataset, share: float, site: str = "", same: np.ndarray | None = None) -> Dataset:
    """The set with this share of every class, or tenth of a target, as its test set; with masks, with this share of all.

    dataset: without a test set; it is returned unchanged if no training sample would be left. site: the column that says
    where samples are from, if there is one; every class of every site then gives its share. same: of each sample, the first that goes to the side it goes to, int64
    [N], unless that would halve or double the share; None if each goes by itself.
    """
    rng, kinds = np.random.default_rng(1797), strata(dataset.y)
    if site:
        kinds = np.unique(np.stack([dataset.columns[site], kinds]), axis=1, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(kinds, minlength=0 if site or dataset.target or dataset.several else len(dataset.classes))
    held = np.zeros(len(dataset.y), dtype=bool)
    for c, size in enumerate(largest_remainder(counts * share, counts)):
        held[rng.permutation(np.flatnonzero(kinds == c))[:size]] = True
    if same is not None and 0.5 * held.sum() <= held[same].sum() <= 2 * held.sum():
        held = held[same]
    return dataset if held.all() else replace(_held_out(dataset, held), held_out=True)


def validation_of(dataset: Dataset, share: float) -> Dataset:
    """The set without its test set; instead, this share of its training samples, of every class and domain alike. Samples
    that its intake says belong together, such as the slices of a patient, go together.

    Raises DataError (E403) where either side would be empty.
    """
    kinds = np.stack([strata(dataset.y), *(v for name, v in dataset.columns.items() if name == "domain")], axis=1)
    group = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    rng, held = np.random.default_rng(0), np.zeros(len(dataset.y), dtype=bool)
    if together := dataset.intake.form.get("together") if dataset.intake else None:
        held = _whole_groups(dataset.columns[together], share, rng)
    else:
        for kind in range(int(group.max()) + 1):
            rows = np.flatnonzero(group == kind)
            held[rng.permutation(rows)[: round(share * len(rows))]] = True
    if not held.any() or held.all():
        raise DataError(
            "E403", f"{dataset.name}: {share:g} of {len(held)} training samples leaves one side without any."
        )
    return _held_out(dataset, held)


def _whole_groups(groups: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Rows of whole groups, bool [N]: as many groups as come closest to the share of rows from below, at least one."""
    names, sizes = np.unique(groups, return_counts=True)
    order = rng.permutation(len(names))
    fits = np.cumsum(sizes[order]) <= share * len(groups)
    return np.isin(groups, names[order[: max(1, int(fits.sum()))]])


def _held_out(dataset: Dataset, held: np.ndarray) -> Dataset:
    """The held training rows, bool [N], as the test set."""
    return replace(
        dataset,
        x=chosen(dataset.x, ~held),
        y=dataset.y[~held],
        x_test=chosen(dataset.x, held),
        y_test=dataset.y[held],
        columns={name: values[~held] for name, values in dataset.columns.items()},
        test_columns={name: values[held] for name, values in dataset.columns.items()},
    )
