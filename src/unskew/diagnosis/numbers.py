"""The numbers by which a site takes part in a diagnosis: counts, means and sums, nothing of a single sample.

A sample is described by its moments: the mean and the standard deviation of each channel of an image or signal, or the
numbers of a table's row themselves; of several inputs by those of each. With fewer than FEWEST samples a site tells its counts alone.

Letters: C classes, F moments, G groups (the classes, or one for all where samples have masks), n samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.data.dataset import strata
from unskew.data.federation import Federation
from unskew.data.layout import Layout

FEWEST = 5
"""Samples behind a mean that leaves a site."""
MOST_MOMENTS = 256
"""Moments that are compared at most, spread evenly over the columns of a wide table."""
CHUNK = 1 << 24
"""Values that are read at once."""


@dataclass(frozen=True, eq=False)
class SiteNumbers:
    """What leaves one site.

    samples: how many it trains on. counts: [C] its samples of each class; with masks, its pixels. mean: [F] over its
    samples, None with fewer than FEWEST. sums: [G, F] over its samples of each group; squares: [F] the sum of squares.
    Both are zero where mean is None, and only their totals over all sites are used, so that they can be added up securely.
    """

    name: str
    samples: int
    counts: np.ndarray
    mean: np.ndarray | None
    sums: np.ndarray
    squares: np.ndarray


def numbers_of(federation: Federation) -> list[SiteNumbers]:
    """What each site of a federation tells; a site without samples tells that it has none."""
    return [_site(federation, k) for k in range(federation.clients)]


def leaving(sites: Sequence[SiteNumbers]) -> str:
    """Two sentences on what these numbers are, for those who decide whether they may leave a site."""
    groups, F = sites[0].sums.shape
    classes = f", by class ({groups} x {F} numbers)" if groups > 1 else ""
    return (
        f"From each site: its number of samples, its counts of {len(sites[0].counts)} classes, and the mean of {F} input "
        f"statistics over its samples, from {FEWEST} samples on. From all sites together, added up before anybody reads "
        f"them: the sums of these statistics{classes} and of their squares."
    )


def moments(x: np.ndarray, layout: Layout | None = None, most: int = MOST_MOMENTS) -> np.ndarray:
    """[n, F] of samples [n, ...]: mean and standard deviation of every channel, or the columns of a table's rows.

    layout: of rows of several inputs, which have no more moments together than one input may. most: F at most.
    """
    if layout:
        each = max(1, most // len(layout.inputs))
        parts = [(x[:, start:end], one.shape or (1,)) for one, start, end in layout.places]
        return np.concatenate([moments(part.reshape(len(x), *shape), None, each) for part, shape in parts], axis=1)
    values = np.asarray(x, dtype=np.float64)
    if x.ndim > 2:
        flat = values.reshape(*x.shape[:2], -1)
        values = np.concatenate([flat.mean(-1), flat.std(-1)], axis=1)
    if values.shape[1] <= most:
        return values
    return values[:, np.linspace(0, values.shape[1] - 1, most).round().astype(int)]


def _site(f: Federation, k: int) -> SiteNumbers:
    rows, width = np.sort(f.train[k]), moments(f.x[:1], f.layout).shape[1]
    sums, squares = np.zeros((1 if f.masks else len(f.groups), width)), np.zeros(width)
    if len(rows) < FEWEST:
        return SiteNumbers(f.name_of(k), len(rows), f.label_counts[k], None, sums, squares)
    step = max(1, CHUNK // max(1, int(np.prod(f.shape))))
    group = None if f.masks else strata(f.y)
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        values = moments(f.x[some], f.layout)
        np.add.at(sums, np.zeros(len(some), np.int64) if group is None else group[some], values)
        squares += (values**2).sum(0)
    return SiteNumbers(f.name_of(k), len(rows), f.label_counts[k], sums.sum(0) / len(rows), sums, squares)
