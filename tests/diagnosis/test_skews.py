"""Measures of skew, on federations whose skew is known, and the numbers that leave a site for them."""

from __future__ import annotations

import numpy as np
import pytest

from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.diagnosis.skews import (
    FEWEST,
    SiteNumbers,
    absence,
    disclosure_sentences,
    feature_skew,
    feature_skews,
    label_skew,
    moments,
    numbers_of,
    skews_of,
    spread_over,
)

rng = np.random.default_rng(0)


def federation(sites: list[list[int]], shift: float = 0.0, width: int = 6) -> Federation:
    """Images [1, width, width] of unit normal pixels; every second site is brighter by `shift`."""
    y = np.array([label for site in sites for label in site], np.int64)
    owner = np.repeat(np.arange(len(sites)), [len(site) for site in sites])
    x = np.random.default_rng(1).standard_normal((len(y), 1, width, width)).astype(np.float32)
    x += (0.5 * y + shift * (owner % 2))[:, None, None, None].astype(np.float32)
    classes = tuple(str(c) for c in range(int(y.max()) + 1))
    empty = np.zeros((0, 1, width, width), np.float32)
    index = Index.of([np.flatnonzero(owner == k) for k in range(len(sites))])
    return Federation("f", x, y, empty, y[:0], classes, index, Index.empty(len(sites)), "by hand")


ALIKE = [[0, 1, 2] * 40] * 6
APART = [[k % 3] * 120 for k in range(6)]


def test_label_skew_by_hand():
    """Two sites of one class each: TV = 1/2; chance 1/2 * 2 sqrt(1 / (2 pi n)) = 0.0399 for n = 100."""
    counts = np.array([[100.0, 0.0], [0.0, 100.0]])
    assert label_skew(counts, counts.sum(1)) == pytest.approx(0.5 - 1 / np.sqrt(2 * np.pi * 100), abs=1e-6)


def test_feature_skew_by_hand():
    """0 to 4 at one site and 6 to 10 at the other: S = 90, R = 110, h = 1, so w = 20 / 8 and b = (90 - w) /
    10. A class that no site holds changes nothing."""
    sites, of_two = [], []
    for values in (np.arange(5.0), np.arange(6.0, 11.0)):
        total, squares = values.sum(keepdims=True), (values**2).sum(keepdims=True)
        sites.append(SiteNumbers("s", 5, np.array([5]), total / 5, total[None], squares))
        of_two.append(SiteNumbers("s", 5, np.array([5, 0]), total / 5, np.array([total, 0 * total]), squares))
    assert feature_skew(sites) == feature_skew(of_two) == pytest.approx(np.sqrt(8.75 / 2.5))


def test_the_furthest_site_is_named_and_what_does_not_vary_is_at_no_distance():
    sites = []
    for name, values in (("a", np.arange(5.0)), ("b", np.arange(5.0)), ("c", np.arange(10.0, 15.0))):
        x = np.stack([values, np.ones(5)], 1)
        sites.append(SiteNumbers(name, 5, np.array([5]), x.mean(0), x.sum(0)[None], (x**2).sum(0)))
    found = feature_skews(sites)
    assert found is not None
    assert (found.varies_F.tolist(), found.skew_F[1], found.furthest_F[0]) == ([True, False], 0, "c")
    assert feature_skew(sites) == found.skew_F[0] > 2


def test_feature_skew_is_the_distance_in_standard_deviations():
    """A 6x6 image's brightness varies by 1/6, so sites 0.25 to either side lie 1.5 deviations apart."""
    sites = numbers_of(federation(ALIKE, shift=0.5))
    brightness, contrast = 1.5, 0.0
    assert feature_skew(sites) == pytest.approx((brightness + contrast) / 2, abs=0.12)
    assert feature_skew(numbers_of(federation(ALIKE))) < 0.05


def test_label_skew_does_not_read_as_feature_skew():
    """Classes differ in brightness by three deviations, so sites of one class do; nothing else differs."""
    skews = skews_of(numbers_of(federation(APART)))
    assert skews.label_skew > 0.5
    assert skews.missing == pytest.approx(2 / 3)
    assert skews.feature_skew is not None
    assert skews.feature_skew < 0.1


def test_mixtures_of_classes_do_not_read_as_feature_skew():
    """Sites with 3 : 1 and 1 : 3 of two classes differ by 1.5 deviations, all explained by labels."""
    skews = skews_of(numbers_of(federation([[0, 0, 0, 1] * 30, [0, 1, 1, 1] * 30] * 3)))
    assert skews.feature_skew is not None
    assert skews.feature_skew < 0.1


def test_a_single_class_and_empty_and_tiny_sites():
    """A site without samples, one with a single sample, and one with one class are measured like others."""
    skews = skews_of(numbers_of(federation([[0, 1] * 20, [0] * 40, [1], []])))
    assert (skews.sites, skews.empty) == (3, 1)
    assert skews.missing == pytest.approx(2 / 6)
    assert skews.feature_skew is not None
    only = skews_of(numbers_of(federation([[0] * 9, [0] * 9])))
    assert (only.label_skew, only.missing) == (0.0, 0.0)


def test_imbalance_by_hand():
    """n = (10, 30): 1 - 40^2 / (2 (100 + 900)) = 0.2; the median is 20, of two classes."""
    skews = skews_of(numbers_of(federation([[0, 1] * 5, [0, 1] * 15])))
    assert (skews.imbalance, skews.samples, skews.of_class) == (pytest.approx(0.2), 20, 10)
    assert skews_of(numbers_of(federation([[0, 1] * 5, [], [0, 1] * 15]))).imbalance == pytest.approx(0.2)


@pytest.mark.parametrize(("text", "share"), [("full", 0.0), ("sample:0.25", 0.75), ("bernoulli:0.3", 0.7)])
def test_absence_is_that_of_the_rounds(text: str, share: float):
    assert absence(text, 40) == pytest.approx(share, abs=0.03)


def test_few_samples_leave_no_mean():
    """What leaves a site with fewer than FEWEST samples are counts; a mean of one would be the sample."""
    tiny, enough = numbers_of(federation([[0] * (FEWEST - 1), [0] * FEWEST]))
    assert tiny.mean is None
    assert not tiny.sums.any()
    assert not tiny.squares.any()
    assert enough.mean is not None
    assert enough.sums.any()
    assert f"from {FEWEST} samples on" in disclosure_sentences([tiny, enough])


def test_moments_of_images_and_tables():
    x = np.arange(12.0).reshape(1, 2, 2, 3)
    assert moments(x) == pytest.approx(np.array([[2.5, 8.5, x[0, 0].std(), x[0, 1].std()]]))
    rows = np.arange(6.0).reshape(2, 3)
    assert (moments(rows) == rows).all()
    assert moments(np.zeros((2, 1000))).shape == (2, 256)
    assert spread_over(1000, 4).tolist() == [0, 333, 666, 999]
    assert spread_over(3, 4).tolist() == [0, 1, 2]
