"""Every measure against numbers by hand, and against somebody else's implementation where there is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unskew.runs.measures.confusion import confusion
from unskew.runs.measures.correlation import distance_correlation
from unskew.runs.measures.cross_site import off_diagonal_mean
from unskew.runs.measures.diversity import weight_diversity
from unskew.runs.measures.exposure import Exposure
from unskew.runs.measures.histograms import class_shares, distance
from unskew.runs.measures.received import likeness, likeness_of_real, nearest, nearness
from unskew.runs.measures.separation import davies_bouldin
from unskew.runs.measures.tsne import plane
from unskew.tasks.metric_functions import ece


def test_calibration_by_hand():
    """Two of four at a confidence of 0.9, one of one at 2/3, which ends a bin of 15: 4/5 |0.5 - 0.9| + 1/5 |1 - 2/3|;
    one of one at 0.65 in the bin with 2/3 adds to it."""
    p = np.array([[0.9, 0.1]] * 4 + [[1 / 3, 2 / 3]])
    assert ece(np.array([0, 0, 1, 1, 1]), p) == pytest.approx(0.8 * 0.4 + 0.2 / 3)
    p = np.vstack([p, [[0.35, 0.65]]])
    assert ece(np.array([0, 0, 1, 1, 1, 0]), p) == pytest.approx((1.6 + abs(1 - 2 / 3 - 0.65)) / 6)


def test_confusion_by_hand():
    guess, y = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 0])
    assert confusion(guess, y, 3).tolist() == [[1, 1, 1], [0, 1, 0], [0, 0, 0]]


def test_separation_by_hand():
    """Groups {0, 2} and {10, 14}: means 1 and 12, spreads 1 and 2, so (1 + 2) / 11 for both."""
    x, y = torch.tensor([[0.0], [2.0], [10.0], [14.0]]), torch.tensor([3, 3, 7, 7])
    assert davies_bouldin(x, y) == pytest.approx(3 / 11)
    assert math.isnan(davies_bouldin(x, torch.zeros(4)))
    assert math.isnan(davies_bouldin(torch.tensor([[0.0], [2.0], [2.0], [0.0]]), y))  # both means are 1
    assert math.isnan(davies_bouldin(x / 0, y))


def test_separation_is_scikit_learns():
    from sklearn.metrics import davies_bouldin_score

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 7)), rng.integers(0, 5, 200)
    assert davies_bouldin(torch.tensor(x), torch.tensor(y)) == pytest.approx(
        davies_bouldin_score(x, y), rel=1e-9
    )


def test_diversity_is_eq_24_by_hand():
    """[1, 0], [0, 1], [2, 2]: their mean is [1, 1], squared distances 1, 1 and 2, so 4 / 3."""
    models = [
        {"w": torch.tensor(w), "statistic": torch.tensor([9.0 * w[0]])}
        for w in ([1.0, 0.0], [0.0, 1.0], [2.0, 2.0])
    ]
    assert weight_diversity(models, ["w"]) == pytest.approx(4 / 3)
    assert weight_diversity(models[:1], ["w"]) == 0
    assert math.isnan(weight_diversity([], ["w"]))


def test_correlation_by_hand():
    """x = 0, 1, 3: distances 1, 3, 2, row means 4/3, 1, 5/3, mean 4/3. A map of x gives R = 1."""
    x = torch.tensor([[0.0], [1.0], [3.0]])
    assert distance_correlation(x, -5 * x + 2) == (pytest.approx(1), pytest.approx(1))
    A = np.array([[-4 / 3, 0, 4 / 3], [0, -2 / 3, 2 / 3], [4 / 3, 2 / 3, -2]])
    f = torch.tensor([[0.0], [2.0], [0.0]])  # distances 2, 0, 2: row means 2/3, 4/3, 2/3, mean 8/9
    B = np.array([[-4 / 9, 8 / 9, -4 / 9], [8 / 9, -16 / 9, 8 / 9], [-4 / 9, 8 / 9, -4 / 9]])
    squared = (A * B).mean() / math.sqrt((A * A).mean() * (B * B).mean())
    assert distance_correlation(x, f) == (pytest.approx(math.sqrt(squared)), pytest.approx(squared))


def test_correlation_is_what_fleas_loss_lowers():
    from unskew.methods.flea import squared_distance_correlation

    g = torch.Generator().manual_seed(3)
    x, f = torch.randn(12, 2, 4, 4, generator=g), torch.randn(12, 9, generator=g)
    _, squared = distance_correlation(x, f)
    assert squared == pytest.approx(float(squared_distance_correlation(x, f, torch.ones(12))), abs=1e-5)
    assert all(math.isnan(v) for v in distance_correlation(x, torch.ones(12, 2)))
    assert all(math.isnan(v) for v in distance_correlation(x[:2], f[:2]))


def test_exposure_counts_directed_pairs_and_the_first_time():
    found = Exposure(3)
    found.sent(2, [0], [1, 2])
    found.sent(3, [0, 1], [1])
    found.sent(4, [], [0, 1, 2])
    assert found.since_KK.tolist() == [[0, 2, 2], [0, 3, 0], [0, 0, 0]]
    assert found.share == pytest.approx(3 / 9)


def test_class_shares_by_hand():
    assert class_shares(torch.tensor([0, 0, 2, 1]), 4).tolist() == [0.5, 0.25, 0.25, 0]
    soft = class_shares(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), 2)
    assert soft.tolist() == [0.75, 0.25]
    assert distance(soft, torch.tensor([0.25, 0.75], dtype=torch.float64)) == pytest.approx(0.5)
    assert class_shares(torch.tensor([], dtype=torch.int64), 2).tolist() == [0, 0]


def test_nearest_rows_are_those_of_all_distances():
    rng = np.random.default_rng(2)
    a, b = torch.tensor(rng.normal(size=(300, 5))).float(), torch.tensor(rng.normal(size=(5000, 5))).float()
    far = torch.cdist(a.double(), b.double())
    distance, row = nearest(a, b)
    assert (row == far.argmin(1)).all()
    assert torch.allclose(distance.double(), far.min(1).values, atol=1e-5)
    distance, row = nearest(b[:600], b[:600], others=True)
    far = torch.cdist(b[:600].double(), b[:600].double()).fill_diagonal_(math.inf)
    assert (row == far.argmin(1)).all()
    assert (nearest(b[4990:], b)[0] == 0).all()


def test_likeness_and_nearness_by_hand():
    """Training rows 0 and 10; test rows 2 (class 0), 7 (class 1), 8 (class 1): 2, 3 and 2 away from them."""
    train, test, y = (
        torch.tensor([[0.0], [10.0]]),
        torch.tensor([[2.0], [7.0], [8.0]]),
        torch.tensor([0, 1, 1]),
    )
    assert nearness(torch.tensor([[0.5], [9.5], [7.0]]), train, test) == pytest.approx(0.25)  # 0.5 / 2
    assert nearness(train, train, test) == 0
    assert likeness(torch.tensor([[0.0], [7.0], [2.0]]), torch.tensor([0, 0, 0]), test, y) == pytest.approx(
        2 / 3
    )
    assert likeness_of_real(test, y) == pytest.approx(2 / 3)  # the row at 2 has 7 for its neighbour
    assert math.isnan(nearness(train[:0], train, test))
    assert math.isnan(nearness(train, train, train))
    assert math.isnan(likeness(train[:0], y[:0], test, y))
    assert math.isnan(likeness_of_real(test[:1], y[:1]))


def test_the_mean_over_other_sites_leaves_out_what_is_not_there():
    nan = math.nan
    assert off_diagonal_mean(np.array([[0.9, 0.2, nan], [0.4, 0.8, 0.6], [nan, nan, nan]])) == pytest.approx(
        0.4
    )
    assert math.isnan(off_diagonal_mean(np.array([[1.0]])))


def test_a_plane_is_the_same_every_time_and_keeps_groups_together():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(20, 6)), rng.normal(size=(20, 6)) + 40])
    first, again = plane(x), plane(x)
    assert (first == again).all()
    assert first.shape == (40, 2)
    y = np.repeat([0, 1], 20)
    assert davies_bouldin(torch.tensor(first), torch.tensor(y)) < 0.7
    assert (plane(np.ones((9, 3))) == 0).all()
    assert np.array_equal(plane(x[:3]), np.zeros((3, 2)))
    assert plane(x[:0]).shape == (0, 2)
