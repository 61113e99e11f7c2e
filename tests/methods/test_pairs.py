"""Every pair of Parts for two rounds: it works, or it is refused at construction with the reason."""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest

from unskew.data.index import Index
from unskew.engine import check, testbed
from unskew.engine.assemble import loop_of
from unskew.errors import UsageError
from unskew.methods import registry

pytestmark = pytest.mark.usefixtures("few_attempts")

QUICK = {
    "feddpms": "feddpms(alpha=4,width=6)",
    "fedgen_images": "fedgen_images(stage=0,steps=1,batch_size=4,samples=8)",
    "fedgen": "fedgen(steps=2)",
    "ccvr": "ccvr(each=10,epochs=1)",
}
NAMES = [n for n in registry.names() if n not in ("fedavg", "rbsm", "faug", "fedrdn_v")]


def federation():
    fed = check.federation()
    train = Index.of([np.arange(10), np.arange(40, 41), np.arange(60, 71)])
    return dataclasses.replace(fed, train=train, test=Index.of([fed.test[k] for k in range(3)]), names=None)


SMALL = federation()


def run(text):
    made = loop_of(testbed.run_for(registry.parse(text), SMALL, clients=3, rounds=2, batch=8, lanes="4"))
    try:
        state = made.begin()
        for t in (1, 2):
            state, told = made.round(state, t)
        rows = made.evaluate(state, told)
        events = {e["code"] for e in made.record.rows["events"]}
        assert events <= {"round", "E315"}  # three replies are too few for the proof of Krum
        assert all(math.isfinite(r["value"]) for r in rows)
    finally:
        made.trainer.close()


@pytest.mark.parametrize("first", NAMES)
def test_pairs(first):
    for a, b in combinations(NAMES, 2):
        if a != first:
            continue
        with suppress(UsageError):
            run("+".join(QUICK.get(n, n) for n in (a, b)))


@pytest.mark.parametrize("mask", ["fedlc", "bsm", "rebafl(eps=0)"])
def test_fedrs_after_a_mask(mask):
    """M10: with alpha=0 four of five replies were NaN and dropped, each round."""
    run(f"{mask}+fedrs(alpha=0)")


def test_how_many_pairs_are_refused():
    """The reasons are few: two merges, two ways to weigh clients, two normalisations, masks and mixtures, no common model."""
    reasons = {(a, b): refusal(f"{a}+{b}") for a, b in combinations(NAMES, 2)}
    refused = {pair: why for pair, why in reasons.items() if why}
    assert {("fedrdn", "norm"), ("fedavgm", "fednova"), ("bsm", "flea")} <= refused.keys()
    assert all(why.code == "E107" and len(why.text) > 40 for why in refused.values())
    assert len(refused) < 0.2 * math.comb(len(NAMES), 2)


def refusal(text):
    try:
        registry.parse(text)
    except UsageError as why:
        return why
    return None
