"""Quotas, decks, test rows and attendance against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unskew import data
from unskew.data.clients.availability import Availability
from unskew.data.clients.partition import Index, Request, draw_rows, split_among_owners
from unskew.data.samples import dataset
from unskew.data.samples.dataset import largest_remainder, validation_of, whole_groups, with_test_set
from unskew.data.skew import (
    Brightness,
    Client,
    Contrast,
    Gamma,
    Noise,
    Rotate90,
    largest_remainder_exact,
    partition,
)
from unskew.data.skews.classes import wrap_rows
from unskew.data.skews.dirichlet import repair


def rng(seed=0):
    return np.random.default_rng(seed)


PLENTY = [9] * 4


@pytest.mark.parametrize(
    ("quota", "most", "numbers"),
    [
        ([1.2, 2.7, 3.1], PLENTY[:3], [1, 3, 3]),  # 7 in all; rounding down leaves one, for the remainder .7
        ([0.5, 0.5, 0.5, 0.5], PLENTY, [1, 1, 0, 0]),  # equal remainders: the first ones
        ([2.9, 2.9, 0.2], [2, 5, 5], [2, 3, 1]),  # 6 in all; the first has no room, so the .2 gets one
        ([3.9, 0.1], [2, 5], [2, 1]),  # one each: what still has no room stays out
        ([3.0, 3.0], [1, 1], [1, 1]),
    ],
)
def test_quotas_are_rounded_by_the_largest_remainder(quota, most, numbers):
    whole = largest_remainder(np.array(quota), np.array(most))
    assert whole.tolist() == numbers
    assert whole.dtype == np.int64


def test_rows_are_drawn_in_the_proportions_of_the_classes():
    """5 of 2 + 6 + 2 rows: quotas 1, 3 and 1; each class's rows are a random choice, listed in ascending
    order."""
    y = np.array([0, 0, 1, 1, 1, 1, 1, 1, 2, 2])
    seen = set()
    for seed in range(20):
        rows = draw_rows(y, 5, rng(seed))
        assert np.bincount(y[rows]).tolist() == [1, 3, 1]
        assert rows.tolist() == sorted(set(rows.tolist()))
        seen |= set(rows.tolist())
    assert seen == set(range(10))


@pytest.mark.parametrize(
    ("n", "weights", "numbers"),
    [
        (7, [1, 1, 2], [2, 2, 3]),  # 7/4, 7/4, 14/4: 1, 1, 3 and remainders 3, 3, 2
        (5, [1, 2, 1], [1, 3, 1]),  # 5/4, 10/4, 5/4: 1, 2, 1 and remainders 1, 2, 1
        (1, [1, 10, 1], [0, 1, 0]),
    ],
)
def test_test_rows_are_rounded_by_the_largest_remainder_whatever_the_lot(n, weights, numbers):
    for seed in range(20):
        assert largest_remainder_exact(n, np.array(weights), rng(seed)).tolist() == numbers


def test_each_class_has_a_deck_of_its_own_and_no_client_a_row_twice():
    y = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    index = wrap_rows([np.array([0, 1]), np.array([1, 3]), np.array([2, 0])], 2, Request(y, 3), rng())
    assert [np.bincount(y[rows], minlength=4).tolist() for rows in index] == [
        [2, 2, 0, 0],
        [0, 2, 0, 2],
        [2, 0, 1, 0],
    ]
    assert all(len(set(rows.tolist())) == len(rows) for rows in index)


def test_a_class_is_split_evenly_among_its_owners():
    """Class 0 has 5 rows and two owners: 3 and 2. Class 1 has no owner."""
    y = np.array([0, 0, 1, 0, 0, 0, 1])
    index = split_among_owners([np.array([0]), np.array([], int), np.array([0])], Request(y, 3), rng())
    assert index.sizes.tolist() == [3, 0, 2]
    assert set(y[index.rows]) == {0}


def test_clients_of_a_group_differ_in_their_classes():
    """Four classes for four clients of one class each; drawn at random, two would have the same one in 10 of
    11 cases."""
    y = np.tile(np.arange(4), 10)
    for seed in range(5):
        assert sorted(int(y[rows[0]]) for rows in partition("clustered:1", y, 4, rng(seed))) == [0, 1, 2, 3]


def test_a_site_keeps_at_most_so_many_samples_in_the_proportions_of_its_classes():
    """Of site a 8 of 15 and 5 rows: 6 and 2, from anywhere among them; site b has 6 rows and keeps them
    all."""
    y, site = np.repeat([0, 1, 0], [15, 5, 6]), np.repeat(["a", "b"], [20, 6])
    a, b = partition("column:site", y, 2, rng(), columns={"site": site}, samples=8)
    assert np.bincount(y[a]).tolist() == [6, 2]
    assert a[y[a] == 0].tolist() != list(range(6))
    assert b.tolist() == list(range(20, 26))


@pytest.mark.parametrize("skew", ["iid", "dirichlet:5,min=1", "classes:1", "pathological:1", "clustered:1"])
def test_rows_of_a_class_are_shuffled_before_they_are_dealt(skew):
    """Files are often sorted, by date or by patient: no client may get a stretch of one."""
    dealt, otherwise = (partition(skew, np.zeros(60, int), 3, rng(seed)) for seed in (0, 1))
    assert all(np.diff(np.sort(rows)).max() > 1 for rows in dealt)
    assert set(dealt[0].tolist()) != set(otherwise[0].tolist())


def test_rows_move_from_the_largest_client_to_those_with_too_few():
    index = Index.of([np.arange(1), np.arange(1, 9), np.arange(9, 12), np.arange(0)])
    after = repair(index, 2)
    assert after.sizes.tolist() == [2, 5, 3, 2]  # one and two rows come from the client with eight
    assert sorted(after.rows.tolist()) == list(range(12))


def test_groups_have_equal_classes_or_consecutive_rows():
    y = np.tile(np.repeat([0, 1, 2], 4), 10)
    even = partition("dirichlet:0.5,min=1,groups=2", y, 8, rng())
    halves = [np.concatenate([even[k] for k in range(first, first + 4)]) for first in (0, 4)]
    assert [np.bincount(y[half]).tolist() for half in halves] == [[20, 20, 20]] * 2
    consecutive = partition("dirichlet:0.5,min=1,groups=2,contiguous", y, 8, rng())
    halves = [np.sort(np.concatenate([consecutive[k] for k in range(first, first + 4)])) for first in (0, 4)]
    assert [half.tolist() for half in halves] == [list(range(60)), list(range(60, 120))]


@pytest.mark.parametrize(
    ("alpha", "K", "least"),
    [(0.1, 101, 3), (0.11, 101, 10), (0.1, 100, 10)],
)
def test_the_smallest_client_without_the_option_min(alpha, K, least):
    """3 rows where many clients meet a small alpha, one for each class otherwise."""
    y = np.tile(np.arange(10), 2 * K)
    smallest = min(partition(f"dirichlet:{alpha}", y, K, rng(seed)).sizes.min() for seed in range(2))
    assert least <= smallest < least + 7


@pytest.mark.parametrize(
    ("text", "K", "asked"),
    [
        ("sample:0.1", 4, 1),  # a share that rounds to nobody asks one
        ("sample:0.5", 5, 2),
        ("sample:0.35", 5, 2),
        ("sample:2.9", 5, 2),
        ("sample:7", 5, 5),
        ("sample:3", 1000, 3),
    ],
)
def test_how_many_a_sample_asks(text, K, asked):
    seen = set()
    for seed in range(30):
        attendance = Availability.parse(text).who(1, K, lambda t, s=seed: rng([s, t]))
        assert len(attendance.asked) == asked
        assert attendance.asked.tolist() == sorted(set(attendance.asked.tolist()))
        assert 0 <= attendance.asked.min() <= attendance.asked.max() < K
        assert np.array_equal(attendance.asked, attendance.answered)
        seen |= set(attendance.asked.tolist())
    assert len(seen) == K or K == 1000


def test_clients_of_a_group_answer_with_its_probability():
    """Of three clients the first group has two."""
    assert Availability.parse("clustered:1-0").who(1, 3, rng).answered.tolist() == [0, 1]


def test_a_period_begins_with_its_first_round():
    who = Availability.parse("persistent:0.5x3")
    answers = [tuple(who.who(t, 64, rng).answered.tolist()) for t in range(1, 8)]
    assert answers[0] == answers[1] == answers[2] != answers[3] == answers[4] == answers[5] != answers[6]
    assert answers[3] == tuple(np.flatnonzero(rng(4).random(64) < 0.5).tolist())


@pytest.mark.parametrize("rounds", [1, 3])
def test_who_fails_in_a_period_s_first_round_does_not_hang_on_who_is_there(rounds):
    alone, with_drop = (Availability.parse(f"persistent:0.3x{rounds}{more}") for more in ("", ",drop:0.3"))
    for t in range(1, 8):
        there, left = (len(who.who(t, 4000, rng).answered) for who in (alone, with_drop))
        assert left / there == pytest.approx(0.7, abs=0.07)
    late = Availability.parse(f"persistent:0.3x{rounds},deadline:1")
    for t in range(1, 8):
        found = late.who(t, 4000, rng)
        assert len(found.late) / (len(found.late) + len(found.answered)) == pytest.approx(0.5, abs=0.07)


def test_late_is_who_was_there_and_came_after_the_deadline(tmp_path):
    """Client 0 comes at the deadline, 1 after it, and 2 fails, whenever it would have come."""
    (tmp_path / "t.csv").write_text("round,client,seconds\n1,0,5\n1,1,5.5\n1,2,9\n2,1,1\n")
    attendance = Availability.parse(f"trace:{tmp_path / 't.csv'},deadline:5").who(
        1, 3, lambda t: np.random.default_rng(t)
    )
    assert (attendance.asked.tolist(), attendance.answered.tolist(), attendance.late.tolist()) == (
        [0, 1, 2],
        [0],
        [1, 2],
    )
    failed = Availability.parse(f"trace:{tmp_path / 't.csv'},deadline:5,drop:1").who(
        1, 3, lambda t: np.random.default_rng(t)
    )
    assert (failed.asked.tolist(), failed.answered.tolist(), failed.late.tolist()) == ([0, 1, 2], [], [])


@pytest.mark.parametrize(
    ("text", "probability"),
    [
        ("full", 1.0),
        ("poisson:0.3", 0.3),
        ("poisson:0.3,drop:0.5,deadline:1", 0.3),  # failing and being late is each client's own
        ("poisson:0.3,quorum:2", None),  # whether one counts depends on another
        ("poisson:0.3,redraw", None),
        ("sample:0.3", None),
    ],
)
def test_who_is_asked_independently_of_all_others(text, probability):
    """What the accounts of differential privacy rest on."""
    assert Availability.parse(text).independent == probability


def test_tenths_begin_at_their_edges_and_none_is_empty():
    """Half of the targets are 0, so the first tenth holds all of these, and no edge is at 0."""
    y = np.concatenate([np.zeros(50), np.arange(1.0, 51)])
    cuts = dataset.tenth_edges(y)
    assert cuts.tolist() == pytest.approx([0.5, 10.4, 20.3, 30.2, 40.1], abs=0.11)
    assert np.bincount(dataset.tenths(y, cuts)).tolist() == [50, 10, 10, 10, 10, 10]
    assert dataset.tenths(np.array([1.0, 2.0, 3.0]), np.array([2.0])).tolist() == [0, 1, 1]
    assert dataset.tenth_names(np.array([2.0, 5.0])) == ("below 2", "2 to 5", "from 5")


def test_groups_are_held_out_whole_as_many_as_fit_and_at_least_one():
    """Of ten patients with a slice each 0.3 are three; of 4 and 4 slices one patient, whichever share is
    asked for."""
    assert whole_groups(np.arange(10), [np.zeros(10, int)], 0.3, rng()).sum() == 3
    both = np.repeat([0, 1], 4)
    for share in (0.01, 0.5, 0.9):
        held = whole_groups(both, [np.zeros(8, int)], share, rng())
        assert held.sum() == 4
        assert len(set(both[held])) == 1


def test_groups_are_held_out_in_proportion_to_classes_and_sites():
    """Ten patients of each of two classes at each of two sites, with three rows each: a fifth are two of each.
    The only patient of a third class stays in training."""
    patient = np.repeat(np.arange(41), 3)
    y, site = np.minimum(patient // 20, 2), patient // 10 % 2
    held = whole_groups(patient, [y, site], 0.2, rng())
    assert set(np.unique(patient[held], return_counts=True)[1]) == {3}
    kinds, counts = np.unique(np.stack([y, site])[:, held], axis=1, return_counts=True)
    assert kinds.T.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert counts.tolist() == [6, 6, 6, 6]


def test_held_out_rows_are_drawn_from_the_whole_file():
    """The first or last rows of a sorted file would be others than those that are trained on."""
    dataset = data.arrays(np.arange(60.0)[:, None], np.repeat([0, 1], 30), test=0)
    for held in (validation_of(dataset, 0.2), with_test_set(dataset, 0.2)):
        places = np.sort(held.x_test.ravel())
        assert len(places) == 12
        for of_class in (places[:6], places[6:]):
            assert np.diff(of_class).max() > 1
            assert of_class.max() - of_class.min() > 10


def test_what_devices_see_by_hand():
    """Two samples of two pixels, the second twice as bright, under client 1, whose u is 0.854102 and v
    0.927051."""
    x, client = np.array([[[[0.1, 0.3]]], [[[0.2, 0.6]]]], np.float32), Client(1)
    factor = 2 ** (0.5 * 0.854102)
    assert Brightness(0.5).apply(x, client) == pytest.approx(x + 0.5 * 0.854102)
    around = np.array(
        [[[[0.2 - 0.1 * factor, 0.2 + 0.1 * factor]]], [[[0.4 - 0.2 * factor, 0.4 + 0.2 * factor]]]]
    )
    assert Contrast(0.5).apply(x, client) == pytest.approx(around)  # each sample around its own mean
    assert Gamma(0.5).apply(x, client) == pytest.approx(x**factor)
    flat = np.zeros((50, 1, 40, 40), np.float32)
    assert Noise(0.5).apply(flat, client).std() == pytest.approx(0.5 * 0.927051, rel=0.01)
    for k in range(5):
        assert np.array_equal(
            Rotate90().apply(flat + np.arange(40), Client(k)), np.rot90(flat + np.arange(40), k, (2, 3))
        )


def test_test_rows_of_an_unknown_site_belong_to_nobody():
    x, y = rng().random((8, 2)), np.arange(8) % 2
    dataset = data.arrays(
        x,
        y,
        x[:4],
        y[:4],
        columns={"site": np.array([1, 1, 1, 1, 5, 5, 5, 5])},
        test_columns={"site": [1, 3, 5, 9]},
    )
    federation = data.build(dataset, "column:site", 1, rng(), rng())
    assert [rows.tolist() for rows in federation.test] == [[0], [2]]
    assert not federation.natural
