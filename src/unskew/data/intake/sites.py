"""What the samples of each site look like: how many, in which range of values, of which classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.intake.columns import site_of

LOOKED_AT = 200
"""Samples of a site, evenly spaced, of which the range of values is taken."""
APART = 4.0
"""Ratio of two sites' ranges above which they count as differently scaled."""


@dataclass(frozen=True)
class Site:
    """Training samples of a site. low, high: of their values; spread: the median over samples of the range of one's values.

    shares: of each class among the samples, or among the pixels of masks.
    """

    name: str
    samples: int
    low: float
    high: float
    spread: float
    shares: tuple[float, ...]


def site_column(dataset: Dataset | Federation) -> str:
    """The column by which the set was divided, or else that a usual name says holds sites; "" without either."""
    divided = dataset.intake.divided if dataset.intake else ""
    return divided if divided in dataset.columns else site_of(dataset.columns)


def by_site(data: Dataset | Federation) -> list[Site]:
    """The sites of a set that has a column of them, or of a federation whose clients are sites; else none."""
    if isinstance(data, Federation):
        return [_site(data, data.name_of(k), rows) for k, rows in enumerate(data.train)] if data.natural else []
    column = site_column(data)
    if not column:
        return []
    values, names = data.columns[column], data.labels.get(column)
    known = np.unique(values).tolist()
    return [_site(data, names[int(v)] if names else str(v), np.flatnonzero(values == v)) for v in known]


def _site(data: Dataset | Federation, name: str, rows: np.ndarray) -> Site:
    counts = np.zeros(len(data.classes), np.int64)
    for row in range(0, 0 if data.target else len(rows), LOOKED_AT):
        some = np.asarray(data.y[rows[row : row + LOOKED_AT]])
        counts += some.sum(0) if data.several else np.bincount(some[some >= 0], minlength=len(counts))
    some = np.asarray(data.x[rows[:: max(1, len(rows) // LOOKED_AT)]])
    some = some.reshape(len(some), data.x[0].size)
    low, high = (some.min(1), some.max(1)) if len(some) else (np.zeros(1), np.zeros(1))
    shares = counts / max(1, counts.sum())
    return Site(
        name, len(rows), float(low.min()), float(high.max()), float(np.median(high - low)), tuple(shares.tolist())
    )


def apart(sites: list[Site]) -> tuple[Site, Site] | None:
    """The sites of the smallest and the largest range of values if these differ more than fourfold."""
    varied = sorted((site for site in sites if site.spread > 0), key=lambda site: site.spread)
    return (varied[0], varied[-1]) if varied and varied[-1].spread > APART * varied[0].spread else None
