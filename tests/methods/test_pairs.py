"""Pairs of Parts for two rounds: each works, or it is refused at construction with the reason.

Of all pairs, whose number grows with the square of the methods', a sample is tried in which every method
meets two others. UNSKEW_MATRIX=all tries every pair, and UNSKEW_MATRIX=3/30 the third of thirty parts into
which they are divided, so that a nightly job has tried each once in a month (`make matrix`).
"""

from __future__ import annotations

import dataclasses
import math
import os
from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest

from unskew.data.clients.partition import Index
from unskew.errors import UsageError
from unskew.methods import catalogue, registry
from unskew.runs import conformance
from unskew.runs.assemble import loop_of

pytestmark = pytest.mark.usefixtures("few_attempts")

QUICK = {
    "feddpms": "feddpms(alpha=4,width=6)",
    "fedgen_images": "fedgen_images(stage=0,steps=1,batch_size=4,samples=8)",
    "fedgen": "fedgen(steps=2)",
    "pfedme": "pfedme(K=2)",
    "pfedhn": "pfedhn(hidden=8)",
    "ccvr": "ccvr(each=10,epochs=1)",
}
NAMES = [n for n in registry.names() if n != "fedavg" and n not in catalogue.presets()]


def federation():
    fed = conformance.small_federation()
    train = Index.of([np.arange(10), np.arange(40, 41), np.arange(60, 71)])
    return dataclasses.replace(fed, train=train, test=Index.of([fed.test[k] for k in range(3)]), names=None)


SMALL = federation()


def run(text):
    made = loop_of(conformance.run_for(registry.parse(text), SMALL, clients=3, rounds=2, batch=8, lanes="4"))
    state = made.begin()
    for t in (1, 2):
        state, told = made.round(state, t)
    rows = made.evaluate(state, told)
    events = {e["code"] for e in made.record.rows["events"]}
    # too few replies for the proof of Krum; sums in the clip of `dp`; two rounds are CFL's first stage
    assert events <= {"round", "E108", "E128", "E139"}
    assert all(math.isfinite(r["value"]) for r in rows)


STEPS = (8,)
"""A method meets those that stand so far from it in the circle of names."""


def chosen(which: str) -> list[str]:
    """The pairs to try, as methods are written. which: "" for the sample, "all", or "3/30"."""
    count = len(NAMES)
    steps = {step: [(k, (k + step) % count) for k in range(count)] for step in range(1, count // 2 + 1)}
    if which == "":
        pairs = [pair for step in STEPS for pair in steps[step]]
    else:
        part, parts = (0, 1) if which == "all" else (int(n) for n in which.split("/"))
        pairs = [pair for step, all_of in steps.items() if step % parts == part % parts for pair in all_of]
    return ["+".join(NAMES[k] for k in pair) for pair in sorted({(min(pair), max(pair)) for pair in pairs})]


@pytest.mark.parametrize("pair", chosen(os.environ.get("UNSKEW_MATRIX", "")))
def test_pairs(pair):
    with suppress(UsageError):
        run("+".join(QUICK.get(name, name) for name in pair.split("+")))


def test_how_many_pairs_are_refused():
    """The reasons are few: two merges, weightings or normalisations, masks and mixtures, no common model."""
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


@pytest.mark.parametrize("pair", ["fedamp+fedetf", "fedcac+fedetf"])
def test_weights_that_are_one_number_can_be_compared_by_client(pair):
    """FedETF trains such a weight beside the tensors."""
    run(pair)


def test_who_sends_each_client_weights_of_its_own_needs_some_that_are_sent():
    with pytest.raises(UsageError, match="E108 'fedamp' cannot run here: clients keep every weight"):
        run("fedamp+local")
    with pytest.raises(UsageError, match="E108 'fedlesam' cannot run here: it follows how the global model"):
        run("fedlesam+local")
