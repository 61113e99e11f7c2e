"""What a study would take out of a site, by hand: bytes of the whole study, and epsilon of all its
accounts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.core.account import Account
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.federation.site import study_review
from unskew.federation.site.guard import Guard
from unskew.federation.site.policy import Policy
from unskew.federation.site.study_review import Study
from unskew.methods import registry
from unskew.runs import conformance


@dataclass(frozen=True)
class Sending(Part):
    """Shares five numbers with every reply, and three before round 1 and after every third round."""

    name: ClassVar[str] = "sending"

    def shares(self, fed):
        return {"s": Share((5,), kind="sums", samples="client")}

    def finish(self, w, c):
        return {"s": torch.zeros(5)}, {}

    @property
    def trips(self):
        def client(w, c):
            return {"t": torch.zeros(3)}

        return (Trip(lambda t, T: t % 3 == 0, client, lambda w, s, ups, fed: (w, s), self.trip_shares),)

    @staticmethod
    def trip_shares(fed):
        return {"t": Share((3,), kind="sums", samples="class")}


ROUNDS, TRIPS = 7, 3  # the trips of rounds 0, 3 and 6


def study(method: Method | None = None, **more) -> Study:
    made = conformance.loop_for(method or Method(Sending()))
    made.trainer.close()
    settings = conformance.short_settings(rounds=ROUNDS, **more)
    counts_KC = np.array([[20, 0, 13], [0, 0, 0]])
    return Study(made.trainer.method, settings, made.trainer.fed, made.trainer.sent, counts_KC, 33, 4)


def test_bytes_are_those_of_every_round_and_of_every_trip():
    plain = study()
    w = sum(t.numel() for t in plain.fed.net.weights().values())
    assert plain.bytes == ROUNDS * (4 * w + 20) + TRIPS * 12
    assert study(Method()).bytes == ROUNDS * 4 * w
    assert {what: often for what, _, often in plain.shares()} == {
        "the weights": ROUNDS, "sending/s": ROUNDS, "sending/t": TRIPS, "the score": ROUNDS
    }  # fmt: skip
    masked = study(secure_aggregation="on")
    assert masked.summed
    assert masked.bytes == ROUNDS * (8 * w + 40) + TRIPS * 24  # numbers are summed in 64 bits


def test_epsilons_of_all_accounts_add_up_and_an_account_of_nothing_is_infinite(monkeypatch):
    known: dict[str, Account] = {}
    monkeypatch.setattr(study_review, "accounts", lambda method, fed, counts: known)
    assert study().epsilon == 0
    known |= {
        "a": Account("", ((1.0, "one"), (math.inf, "another")), delta=0.25),
        "b": Account("", ((2.0, "one"), (3.0, "another")), delta=0.5),
    }
    assert (study().epsilon, study().delta) == (4, 0.75)
    known["c"] = Account("", ((math.inf, "nothing finite"),))
    assert study().epsilon == math.inf
    assert (replace(study(), trains=0).epsilon, replace(study(), trains=0).delta) == (0, 0)


def test_the_fewest_samples_are_those_of_a_class_of_a_reply_or_of_the_tests():
    """33 samples, 13 of the rarer class, and 4 to test with."""
    each = {what: study().fewest(what, share) for what, share, _ in study().shares()}
    assert each == {"the weights": 33, "sending/s": 33, "sending/t": 13, "the score": 4}
    assert study().fewest_of_all == 4
    assert replace(study(), tests=0).fewest_of_all == 13
    assert replace(study(), tests=0, trains=0).fewest_of_all == 0


@pytest.mark.parametrize(("text", "draws"), [("sums", False), ("features", True)])
def test_a_study_draws_where_a_number_stands_for_single_samples(monkeypatch, text, draws):
    shares = {"t": Share((3,), kind=text, samples=1 if draws else "client")}
    monkeypatch.setattr(Sending, "trip_shares", staticmethod(lambda fed: shares))
    assert study().draws is draws
    assert study().kinds == {"weights": "weights", "sending/s": "sums", "sending/t": text}


@pytest.mark.parametrize("text", ["off", "on"])
def test_a_run_is_counted_as_what_was_judged(tmp_path, text):
    """A stricter policy is held against this when the run goes on."""
    Policy(least_samples=1).write(tmp_path)
    asking = study(secure_aggregation=text)
    run = Guard(tmp_path, "a coordinator", approve="all").check_study("r1", asking, "weights")
    assert (run.summed, run.rounds, run.batch) == (text == "on", ROUNDS, asking.settings.batch)
    assert (run.study, run.method, run.epsilon) == (asking.digest, "sending", 0)
    assert (run.kinds, run.fewest) == (asking.kinds, 4)


@pytest.mark.parametrize(
    "text", ["dp(epsilon=0, noise_multiplier=1.0, delta={})", "feddpms(alpha=5, width=8, mechanism=paper)"]
)
def test_whatever_accounts_for_an_epsilon_says_its_delta(text):
    assert study(registry.parse(text.format(1e-6))).delta == (1e-6 if "delta" in text else 1e-5)
