"""What a noisy release amounts to, in words and in privacy.json; and how often an extra exchange is due."""

from __future__ import annotations

import math

import pytest
import torch

from unskew.core.privacy_account import WEAK_EPSILON, Account, epsilon_caution, epsilon_text
from unskew.core.trip import Trip, trip_index


def test_an_epsilon_without_bound_is_called_infinite():
    """Also where it comes from a file, which has null in its place; `inf` would be read as a number."""
    assert [epsilon_text(e) for e in (math.inf, None, 1.23456, 0.0)] == ["infinite", "infinite", "1.235", "0"]
    account = Account(
        "noise 1", ((math.inf, "published"), (2.5, "one record added")), ((3, 1, 20, math.inf, 2.5),)
    )
    assert account.lines() == [
        "noise 1",
        "  epsilon  infinite  published",
        "  epsilon       2.5  one record added",
    ]
    assert account.as_json()["epsilons"] == [
        {"epsilon": None, "reading": "published"},
        {"epsilon": 2.5, "reading": "one record added"},
    ]
    (row,) = account.as_json()["each"]
    assert row == {"client": 3, "class": 1, "m": 20, "published": math.inf, "added": 2.5}


def test_a_large_epsilon_is_said_to_promise_little():
    assert (epsilon_caution(WEAK_EPSILON), epsilon_caution(0.1)) == ("", "")
    assert (
        epsilon_caution(WEAK_EPSILON + 0.1) == epsilon_caution(math.inf) == "; above 10 this promises little"
    )


def trip(client, when=lambda t, T: True) -> Trip:
    return Trip(when, client, lambda w, s, ups, fed: (w, s), lambda fed: {})


def test_trips_are_counted_with_the_one_before_round_1():
    """What leaves in it counts towards a guarantee as what leaves later."""
    assert trip(max).often(5) == 6
    assert trip(max, lambda t, T: t == 0).often(5) == 1
    assert trip(max, lambda t, T: t == T).often(5) == 1
    assert trip(max, lambda t, T: 0 < t <= T and t % 2 == 0).often(5) == 2


def test_a_trip_is_known_by_what_its_clients_run():
    """A Part may build its trips anew each time; two that run one function cannot be told apart."""

    def first(w, c):
        return {"z": torch.zeros(1)}

    def second(w, c):
        return {}

    assert [trip_index(trip(f), [trip(first), trip(second)]) for f in (first, second)] == [0, 1]
    with pytest.raises(ValueError, match="2 of its trips run the function 'first'"):
        trip_index(trip(first), [trip(first), trip(first)])
    with pytest.raises(ValueError, match="0 of its trips run"):
        trip_index(trip(first), [trip(second)])
