"""How skewed a federation is, computed from what its sites tell (`numbers.py`).

With n_k samples at site k, of which n_kc have class c, p_kc = n_kc / n_k, p_c their mean weighted by n_k, N = sum n_k:

    label skew    sum_k (n_k / N) max(0, TV_k - chance_k),    TV_k = 1/2 sum_c |p_kc - p_c|
                  chance_k = 1/2 sum_c sqrt(2 p_c (1 - p_c) / (pi n_k)): what dealing at random would give
    missing       mean over sites of the share of classes that a site lacks, of those that any site has
    imbalance     1 - N^2 / (K sum_k n_k^2): 0 for sites of one size, near 1 where one site holds nearly everything
    feature skew  sqrt(b / w), averaged over moments: b the variance of sites' means around what their classes lead to
                  expect, w the variance of samples within a site and a class, both beyond chance (`feature_skew`)
    absent        mean share of sites that do not answer in a round, over the first ROUNDS rounds

Letters: C classes, F moments, G groups (the classes, or one for all where samples have masks), K sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.core.keys import numpy_key
from unskew.data.availability import Availability
from unskew.diagnosis.numbers import SiteNumbers

ROUNDS = 50


@dataclass(frozen=True)
class Skews:
    """The measures of a federation; shares lie in [0, 1].

    sites: how many have samples. empty: how many have none. samples: the median a site. of_class: that median over the
    number of classes that the federation has, an average: a site may lack some. feature_skew: in standard deviations of a sample at its site; None where
    fewer than two sites have samples enough to tell, or no class is at two sites.
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
    """The measures of sites, of which at least one has samples. availability, seed: as a run takes them."""
    holding = [site for site in sites if site.samples]
    n_K = np.array([site.samples for site in holding], float)
    counts_KC = np.array([site.counts for site in holding], float)
    known = counts_KC.sum(0) > 0
    return Skews(
        sites=len(holding),
        empty=len(sites) - len(holding),
        samples=float(np.median(n_K)),
        of_class=float(np.median(n_K) / max(1, known.sum())),
        imbalance=float(1 - n_K.sum() ** 2 / (len(n_K) * (n_K**2).sum())),
        label_skew=label_skew(counts_KC[:, known], n_K),
        missing=float((counts_KC[:, known] == 0).mean()),
        feature_skew=feature_skew(holding),
        absent=absent(availability, len(sites), seed),
    )


def label_skew(counts_KC: np.ndarray, n_K: np.ndarray) -> float:
    """Mean total variation distance of sites' label shares to the whole, beyond chance; in [0, 1].

    n_K: samples of each site, which are what chance depends on; counts may be of pixels.
    """
    share_KC = counts_KC / np.maximum(counts_KC.sum(1, keepdims=True), 1)
    share_C = n_K @ share_KC / n_K.sum()
    distance_K = np.abs(share_KC - share_C).sum(1) / 2
    chance_K = np.sqrt(2 * share_C * (1 - share_C) / np.pi).sum() / np.sqrt(n_K) / 2
    return float((n_K * np.maximum(0, distance_K - chance_K)).sum() / n_K.sum())


def feature_skew(sites: Sequence[SiteNumbers]) -> float | None:
    """How far sites lie apart for samples of one class, in standard deviations of a sample; None where nobody can tell.

    m_k: a site's mean; M_c: the mean of a class over all sites; o_k = m_k - sum_c p_kc M_c; w, b as above.
        S = sum_k n_k o_k^2                     expected: w h + N b,    h = sum_k (1 - n_k sum_c p_kc^2 / N_c)
        R = sum of squares around M_c           expected: w (N - C) + N b
    so that w = (R - S) / (N - C - h) and b = (S - w h) / N. A class that only one site holds says nothing of that site.
    """
    telling = [site for site in sites if site.mean is not None]
    if len(telling) < 2:
        return None
    sums_GF = np.sum([site.sums for site in telling], 0)
    n_K = np.array([site.samples for site in telling], float)
    n_KG = np.array([site.counts if len(sums_GF) > 1 else [site.samples] for site in telling], float)
    held = n_KG.sum(0) > 0
    n_KG, n_G, centre_GF = n_KG[:, held], n_KG.sum(0)[held], sums_GF[held] / n_KG.sum(0)[held, None]
    off_KF = np.array([site.mean for site in telling]) - (n_KG / n_K[:, None]) @ centre_GF
    by_site_F = n_K @ off_KF**2
    square_F = np.sum([site.squares for site in telling], 0)
    around_F = square_F - n_G @ centre_GF**2
    chance = float((1 - (n_KG**2 / n_G).sum(1) / n_K).sum())
    free = n_K.sum() - len(n_G) - chance
    varies_F = around_F - by_site_F > 1e-9 * np.maximum(square_F, 1e-30)  # a blank channel has no unit of distance
    if free <= 0 or chance <= 0 or not varies_F.any():
        return None
    within_F = (around_F - by_site_F)[varies_F] / free
    between_F = np.maximum(0, by_site_F[varies_F] - within_F * chance) / n_K.sum()
    return float(np.sqrt(between_F / within_F).mean())


def absent(availability: str, sites: int, seed: int = 0) -> float:
    """The mean share of sites that do not answer in a round."""
    who = Availability.parse(availability)
    answers = [len(who.who(t, sites, lambda t: numpy_key(seed, t, "cohort")).answered) for t in range(1, ROUNDS + 1)]
    return 1 - float(np.mean(answers)) / sites
