"""A round as a whole: bad replies, empty rounds, the ledger, kept weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import unskew
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import size_in_bytes
from unskew.methods import registry
from unskew.runs import conformance

KEEP = {"clients": 8, "rounds": 3, "epochs": 1, "batch": 16, "workers": 1, "model": "cnn_small"}


@dataclass(frozen=True)
class Poison(Part):
    """Client 4 diverges: its weights are not finite."""

    name: ClassVar[str] = "poison"

    def loss(self, w, out, b, c):
        return b.mean(out.raw.sum(-1)) * torch.where(torch.as_tensor(c.id) == 4, math.nan, 0.0)


def test_a_client_that_diverges_is_dropped_and_named_and_the_run_goes_on():
    made = conformance.loop_for(Method(Poison()))
    state, told = made.round(made.begin(), 1)
    assert told.dropped == 1
    assert all(bool(torch.isfinite(v).all()) for v in state.weights.values())
    (event,) = [e for e in made.record.rows["events"] if e["code"] == "E301"]
    assert event["text"].startswith("client-4 round 1: 'w/")
    assert event["text"].endswith("Reply dropped (6 of 7 used).")
    assert made.record.rows["events"][-1]["answered"] == [0, 1, 3, 5, 6, 7]


def test_an_empty_round_counts_and_changes_nothing():
    made = conformance.loop_for(registry.parse("rebafl"), availability="drop:1")
    before = made.begin()
    after, told = made.round(before, 1)
    assert after.t == 1
    assert told.answered == 0
    assert all(torch.equal(after.weights[n], t) for n, t in before.weights.items())
    assert any(e["code"] == "E309" for e in made.record.rows["events"])


def test_the_ledger_holds_every_byte():
    made = conformance.loop_for(registry.parse("flea+scaffold"))
    state, _ = made.round(made.begin(), 1)
    w = sum(t.numel() * 4 for t in state.weights.values())
    rows = {(r["way"], r["share"], i): r for i, r in enumerate(made.record.rows["ledger"])}
    by_share = {(way, share): r for (way, share, _), r in reversed(rows.items())}
    assert by_share["up", "w"]["bytes"] == w
    assert by_share["up", "scaffold/delta"]["bytes"] == w
    features = by_share["up", "flea/features"]
    assert features["clients"] == [0, 1, 3, 4, 5, 6, 7]
    taken = [max(1, int(0.1 * n)) for n in conformance.SIZES if n]
    assert features["bytes"] == [16 * 8 * 8 * 4 * m for m in taken]
    assert features["shape"] == ["rows", 16, 8, 8]
    assert (features["guarantee"], features["reads"]) == ("empirical", "each")
    assert by_share["up", "flea/labels"]["bytes"] == [8 * m for m in taken]
    buffer = state.slices["flea"]
    assert len(buffer["labels"]) == sum(taken)


def test_what_clients_hold_is_not_sent_again():
    """Each client is sent the statistics once, and the activations of every round, but not for the trip, which
    reads none; their labels do not change. Client 2 has no samples and sends nothing."""
    made = conformance.loop_for(registry.parse("flea+fedrdn"))
    state, features = made.begin(), [0]
    for t in (1, 2, 3):
        state, _ = made.round(state, t)
        features.append(size_in_bytes({"": state.slices["flea"]["features"]}))
    labels, pairs = size_in_bytes({"": state.slices["flea"]["labels"]}), size_in_bytes(state.slices["fedrdn"])
    rows = [r for r in made.record.rows["ledger"] if r["way"] == "down"]
    everyone, others = list(range(8)), [0, 1, 3, 4, 5, 6, 7]
    assert [(r["t"], r["share"], r["clients"], r["bytes"]) for r in rows if r["share"] != "w"] == [
        (1, "fedrdn", everyone, pairs),
        (2, "flea", everyone, features[1] + labels),
        (3, "flea", everyone, features[2]),
    ]
    asked = [(r["t"], r["clients"]) for r in rows if r["share"] == "w"]
    assert asked == [(1, everyone), (1, others), (2, everyone), (2, others), (3, everyone)]


def with_norm():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 3),
    )


def test_kept_weights_stay_apart_and_the_others_meet():
    module = with_norm()
    result = unskew.run("fedbn", conformance.small_federation(), **{**KEEP, "model": module})
    start = module.state_dict()
    assert torch.equal(result.weights["0.1.weight"], start["0.1.weight"])  # the server never sees them
    assert not torch.equal(result.weights["0.0.weight"], start["0.0.weight"])
    sent = {n for r in result.record.rows["ledger"] if r["way"] == "up" for n in [r["bytes"]]}
    assert sent == {4 * (8 * 27 + 8 + 288 * 3 + 3)}


def test_a_client_is_scored_with_the_weights_it_keeps_in_every_scope():
    """FedBN's server has no statistics of any client: its weights alone are nobody's model. M16: `global` is
    the score of all test rows, each under its own client's model, not the mean over clients."""
    settings = {**KEEP, "model": with_norm(), "rounds": 4}
    plain = unskew.run("fedbn", conformance.small_federation(), **settings).record
    each = {scope: plain.series(scope, "mean") for scope in ("global@client", "personal@client")}
    assert each["global@client"] == each["personal@client"]
    sizes = [len(rows) for rows in conformance.small_federation().test]
    for t in (2, 3, 4):
        rows = [r for r in plain.rows["metrics"] if (r["t"], r["scope"]) == (t, "global@client")]
        own = {r["client"]: r["value"] for r in rows if r["client"] is not None}
        pooled = np.average(list(own.values()), weights=[sizes[k] for k in own])
        assert dict(zip(*plain.series("global", "accuracy"), strict=True))[t] == pytest.approx(
            pooled, abs=1e-5
        )
    tuned = unskew.run("fedbn+fedbabu(finetune_epochs=2)", conformance.small_federation(), **settings).record
    assert tuned.series("global@client", "mean")[1] != tuned.series("personal@client", "mean")[1]


def test_the_first_round_may_have_epochs_of_its_own():
    """FedNova reads the number of steps, so that a wrong one shows in the merge."""

    def after(t: int, **changes) -> list[torch.Tensor]:
        made = conformance.loop_for(registry.parse("fednova+flea"), **changes)
        state, seen = made.begin(), []
        for now in range(1, t + 1):
            state, summary = made.round(state, now)
            seen += [*state.weights.values(), torch.tensor(summary.loss)]
        return seen

    longer, short = after(2, first_epochs=2), after(1)
    whole = after(2, epochs=2)
    same = [torch.equal(a, b) for a, b in zip(longer, whole)]
    first = len(longer) // 2
    assert all(same[:first])
    assert not all(same[first:])
    assert not all(torch.equal(a, b) for a, b in zip(longer, short))
    assert conformance.short_settings(rounds=3, first_epochs=4).passes == 6
    assert conformance.short_settings(rounds=3).passes == 3
