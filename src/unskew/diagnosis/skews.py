"""Measures of the skews of a federation, computed from numbers that its sites share.

A site shares counts, means and sums, but no single sample. A sample is described by its moments: the mean and
the standard deviation of each channel of an image or signal, or the numbers of a table's row; for several
inputs, the moments of each. A site with fewer than FEWEST samples shares its counts alone. Letters: C
classes, F moments, G groups (the classes, or one for all where samples have masks), K sites, n samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.core.random_keys import numpy_key
from unskew.data.clients.availability import Availability
from unskew.data.clients.federation import Federation
from unskew.data.samples.dataset import strata
from unskew.formats.input_layout import Layout

FEWEST = 5
"""The least number of samples behind a mean that leaves a site."""
MOST_MOMENTS = 256
"""The most moments that are compared, spread evenly over the columns of a wide table."""
CHUNK = 1 << 24
"""The number of values that are read at once."""


@dataclass(frozen=True, eq=False)
class SiteNumbers:
    """The numbers that leave one site.

    samples: the number of training samples. counts: [C] samples of each class, or pixels with masks.
    mean: [F] over samples, None with fewer than FEWEST. sums: [G, F] over the samples of each group.
    squares: [F] sums of squares. `sums` and `squares` are zero if mean is None; only their totals over all
    sites are used, so secure aggregation can add them up.
    """

    name: str
    samples: int
    counts: np.ndarray
    mean: np.ndarray | None
    sums: np.ndarray
    squares: np.ndarray


def numbers_of(federation: Federation) -> list[SiteNumbers]:
    """The numbers that each site of a federation shares."""
    return [_site(federation, k) for k in range(federation.clients)]


def disclosure_sentences(sites: Sequence[SiteNumbers]) -> str:
    """Two sentences on the numbers that sites share, for those who decide about them."""
    groups, F = sites[0].sums.shape
    classes = f", by class ({groups} x {F} numbers)" if groups > 1 else ""
    return (
        f"From each site: its number of samples, its counts of {len(sites[0].counts)} classes, and the mean"
        f" of {F} input statistics over its samples, from {FEWEST} samples on. From all sites together, added"
        f" up before anybody reads them: the sums of these statistics{classes} and of their squares."
    )


def moments(x: np.ndarray, layout: Layout | None = None, most: int = MOST_MOMENTS) -> np.ndarray:
    """Moments [n, F] of samples [n, ...]: mean and deviation of every channel, or the columns of a table.

    layout: of rows with several inputs, which share the limit. most: the largest F.
    """
    if layout:
        each = max(1, most // len(layout.inputs))
        parts = [(x[:, start:end], one.shape or (1,)) for one, start, end in layout.places]
        return np.concatenate(
            [moments(part.reshape(len(x), *shape), None, each) for part, shape in parts], axis=1
        )
    values = np.asarray(x, dtype=np.float64)
    if x.ndim > 2:
        flat = values.reshape(*x.shape[:2], -1)
        values = np.concatenate([flat.mean(-1), flat.std(-1)], axis=1)
    return values if values.shape[1] <= most else values[:, spread_over(values.shape[1], most)]


def spread_over(columns: int, most: int = MOST_MOMENTS) -> np.ndarray:
    """The positions of at most so many columns, spread evenly."""
    return np.linspace(0, columns - 1, min(columns, most)).round().astype(int)


def _site(f: Federation, k: int) -> SiteNumbers:
    rows, width = np.sort(f.train[k]), moments(f.x[f.train.rows[:1]], f.layout).shape[1]
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


ROUNDS = 50


@dataclass(frozen=True)
class Skews:
    """The measures of a federation; shares lie in [0, 1].

    With n_k samples at site k, of which n_kc have class c, p_kc = n_kc / n_k, p_c their mean weighted by n_k,
    N = sum n_k:

        label skew    sum_k (n_k / N) max(0, TV_k - chance_k),    TV_k = 1/2 sum_c |p_kc - p_c|
                      chance_k = 1/2 sum_c sqrt(2 p_c (1 - p_c) / (pi n_k)), expected under a random division
        missing       mean over sites of the share of the federation's classes that a site lacks
        imbalance     1 - N^2 / (K sum_k n_k^2): 0 for sites of one size, near 1 if one site has nearly all
        feature skew  sqrt(b / w), averaged over moments: b the variance of sites' means around the values
                      that their classes predict, w the variance of samples within a site and a class, both
                      beyond chance (`feature_skew`)
        absent        mean share of sites that do not answer in a round, over the first ROUNDS rounds

    sites: the number of sites with samples. empty: the number without. samples: the median over sites.
    of_class: that median divided by the federation's number of classes. feature_skew: in standard deviations
    of a sample at its site; None if fewer than two sites have enough samples, or no class is at two sites.
    """

    sites: int
    empty: int
    samples: float
    of_class: float
    imbalance: float
    label_skew: float
    missing: float
    feature_skew: float | None
    absent: float


def skews_of(sites: Sequence[SiteNumbers], availability: str = "full", seed: int = 0) -> Skews:
    """The measures of sites, of which at least one has samples. availability, seed: settings of a run."""
    nonempty = [site for site in sites if site.samples]
    n_K = np.array([site.samples for site in nonempty], float)
    counts_KC = np.array([site.counts for site in nonempty], float)
    known = counts_KC.sum(0) > 0
    return Skews(
        sites=len(nonempty),
        empty=len(sites) - len(nonempty),
        samples=float(np.median(n_K)),
        of_class=float(np.median(n_K) / max(1, known.sum())),
        imbalance=float(1 - n_K.sum() ** 2 / (len(n_K) * (n_K**2).sum())),
        label_skew=label_skew(counts_KC[:, known], n_K),
        missing=float((counts_KC[:, known] == 0).mean()),
        feature_skew=feature_skew(nonempty),
        absent=absence(availability, len(sites), seed),
    )


def label_skew(counts_KC: np.ndarray, n_K: np.ndarray) -> float:
    """Mean total variation distance of sites' label shares to the whole, beyond chance; in [0, 1].

    counts_KC: of samples or of pixels. n_K: the number of samples of each site.
    """
    share_KC = counts_KC / np.maximum(counts_KC.sum(1, keepdims=True), 1)
    share_C = n_K @ share_KC / n_K.sum()
    distance_K = np.abs(share_KC - share_C).sum(1) / 2
    chance_K = np.sqrt(2 * share_C * (1 - share_C) / np.pi).sum() / np.sqrt(n_K) / 2
    return float((n_K * np.maximum(0, distance_K - chance_K)).sum() / n_K.sum())


@dataclass(frozen=True, eq=False)
class FeatureSkew:
    """skew_F: the distance of sites in each moment, in standard deviations of a sample; 0 for a moment that
    does not vary. varies_F: whether it does. furthest_F: the name of the site that lies furthest from the
    others."""

    skew_F: np.ndarray
    varies_F: np.ndarray
    furthest_F: tuple[str, ...]


def feature_skew(sites: Sequence[SiteNumbers]) -> float | None:
    """The mean distance of sites over the moments that vary; None if undefined. See `feature_skews`."""
    every = feature_skews(sites)
    return None if every is None else float(every.skew_F[every.varies_F].mean())


def feature_skews(sites: Sequence[SiteNumbers]) -> FeatureSkew | None:
    """The distance of sites for samples of one class, in standard deviations of a sample; None if undefined.

    m_k: a site's mean; M_c: a class's mean over all sites; o_k = m_k - sum_c p_kc M_c; w, b: see `Skews`.
        S = sum_k n_k o_k^2                     expected: w h + N b,    h = sum_k (1 - n_k sum_c p_kc^2 / N_c)
        R = sum of squares around M_c           expected: w (N - C) + N b
    so that w = (R - S) / (N - C - h) and b = (S - w h) / N. A class at a single site adds
    nothing.
    """
    sharing = [site for site in sites if site.mean is not None]
    if len(sharing) < 2:
        return None
    sums_GF = np.sum([site.sums for site in sharing], 0)
    n_K = np.array([site.samples for site in sharing], float)
    n_KG = np.array([site.counts if len(sums_GF) > 1 else [site.samples] for site in sharing], float)
    present = n_KG.sum(0) > 0
    n_KG, n_G, centre_GF = (
        n_KG[:, present],
        n_KG.sum(0)[present],
        sums_GF[present] / n_KG.sum(0)[present, None],
    )
    off_KF = np.array([site.mean for site in sharing]) - (n_KG / n_K[:, None]) @ centre_GF
    by_site_F = n_K @ off_KF**2
    square_F = np.sum([site.squares for site in sharing], 0)
    around_F = square_F - n_G @ centre_GF**2
    chance = float((1 - (n_KG**2 / n_G).sum(1) / n_K).sum())
    free = n_K.sum() - len(n_G) - chance
    # a blank channel has no unit of distance
    varies_F = around_F - by_site_F > 1e-9 * np.maximum(square_F, 1e-30)
    if free <= 0 or chance <= 0 or not varies_F.any():
        return None
    within_F = (around_F - by_site_F)[varies_F] / free
    between_F = np.maximum(0, by_site_F[varies_F] - within_F * chance) / n_K.sum()
    skew_F = np.zeros(len(varies_F))
    skew_F[varies_F] = np.sqrt(between_F / within_F)
    return FeatureSkew(skew_F, varies_F, tuple(sharing[k].name for k in np.abs(off_KF).argmax(0)))


def absence(availability: str, sites: int, seed: int = 0) -> float:
    """The mean share of sites that do not answer in a round."""
    who = Availability.parse(availability)
    answers = [
        len(who.who(t, sites, lambda t: numpy_key(seed, t, "cohort")).answered) for t in range(1, ROUNDS + 1)
    ]
    return 1 - float(np.mean(answers)) / sites
