"""How much each client weighs in the merge: by samples, equally, and under a cap. Values worked by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from unskew.core.replies import Reply, Ups, cap_weights


@pytest.mark.parametrize(
    ("weights", "cap", "expected"),
    [
        ([0.8, 0.1, 0.1], 0.5, [0.5, 0.25, 0.25]),
        ([0.7, 0.2, 0.1], 0.4, [0.4, 0.4, 0.2]),  # 0.2 would become 0.4: it just fits
        ([0.9, 0.08, 0.02], 0.4, [0.4, 0.4, 0.2]),  # 0.08 would become 0.48, so it is cut as well
        ([0.9, 0.1], 0.5, [0.5, 0.5]),
        ([0.9, 0.1], 0.3, [0.5, 0.5]),  # two clients cannot both be below a third
        ([1.0], 0.5, [1.0]),
        ([1.0, 0.0, 0.0], 0.5, [0.5, 0.0, 0.0]),
    ],
)
def test_what_is_cut_off_goes_to_the_others_in_proportion(weights, cap, expected):
    assert cap_weights(weights, cap) == pytest.approx(expected)


def test_nobody_ever_exceeds_the_cap_and_nothing_is_lost():
    rng = random.Random(3)
    for _ in range(500):
        raw = [rng.random() ** rng.randrange(1, 9) + 1e-12 for _ in range(rng.randrange(1, 12))]
        cap = rng.uniform(0.05, 1)
        weights = cap_weights([v / sum(raw) for v in raw], cap)
        assert sum(weights) == pytest.approx(1)
        assert max(weights) <= max(cap, 1 / len(raw)) + 1e-9
        order = sorted(range(len(raw)), key=raw.__getitem__)
        assert all(weights[a] <= weights[b] + 1e-12 for a, b in itertools.pairwise(order))


def test_replies_are_weighed_under_the_cap():
    replies = [Reply(0, 80.0, {}), Reply(1, 10.0, {}), Reply(2, 10.0, {})]
    assert Ups.of(replies, cap=0.5).shares_of_weight() == pytest.approx([0.5, 0.25, 0.25])
    assert Ups.of(replies, cap=0.5).seen_by("flea").shares_of_weight() == pytest.approx([0.5, 0.25, 0.25])
    assert Ups.of(replies, 1, "equal", 0.2).shares_of_weight() == pytest.approx([1 / 3] * 3)
