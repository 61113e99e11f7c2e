"""Replies that cannot be used leave no trace, and a run that its clients did not train is no result."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import unskew
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.errors import NothingUsed
from unskew.report import page
from unskew.report.analysis import results_table
from unskew.report.analysis.runs import read_run
from unskew.report.analysis.summary import summary_table
from unskew.report.sections import context_of
from unskew.runs import conformance
from unskew.runs.resolve import resolve
from unskew.runs.score_coverage import UsedReplies, doubt

FAST = {"rounds": 3, "epochs": 4, "batch": 8, "workers": 1}
C = conformance.small_federation().n_classes
K = int((conformance.small_federation().sizes > 0).sum())
DIVERGING = {"lr": 1e30, "lr_decay": 1e-31, "lr_min": 0.05}
"""A first round that ends in NaN at every client, and sound ones after it."""


def answered(result) -> list[int]:
    return [len(e["answered"]) for e in result.record.rows["events"] if e["code"] == "round"]


@pytest.mark.parametrize(("method", "lanes"), [("fedavg", "4"), ("scaffold", "1"), ("fedbn", "4")])
def test_one_bad_round_does_not_exclude_a_client_for_ever(method, lanes):
    """M2: the private state of a dropped reply was stored, and its NaN came back in every later round."""
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.LazyLinear(8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, C)
    )
    model(torch.zeros(2, *conformance.small_federation().shape))
    result = unskew.run(method, conformance.small_federation(), model=model, **FAST, **DIVERGING, lanes=lanes)
    assert answered(result) == [0, K, K]
    assert result.replies == UsedReplies(3, 3 * K, 2 * K, 0, result.replies.reasons)
    assert f"{2 * K} of {3 * K} replies were used" in result.table()


@dataclass(frozen=True)
class Forgetful(Part):
    """Its clients' private state turns infinite in round 1, while what they send is sound."""

    name: ClassVar[str] = "forgetful"

    def client_init(self, w, fed):
        return {"seen": torch.zeros(2)}

    def finish(self, w, c):
        return {}, {"seen": c.mine["seen"] + (torch.inf if c.t == 1 else 1.0)}


def test_a_reply_whose_private_state_is_not_finite_is_dropped(tmp_path):
    """M2: inputs of 1e30 in one round left what FedBN keeps infinite for ever, and nobody was told."""
    result = unskew.run(Forgetful(), conformance.small_federation(), **FAST, name="r", folder=tmp_path)
    assert answered(result) == [0, K, K]
    events = [e for e in result.record.rows["events"] if e["code"] == "E301"]
    assert len(events) == K
    assert "'private state forgetful/seen' has 2 non-finite values" in events[0]["text"]


@pytest.mark.parametrize(
    ("options", "scale", "cause"),
    [
        ({"lr": 1e30}, 1, r"none of \d+ replies was used, so .* fedavg: .* lr=1e\+30 is too high"),
        ({"lr": 0.5}, 1e25, r"inputs as large as \S+ make .* diverge; scale them, with normalise=dataset"),
        ({"availability": "trace:{empty}"}, 1, r"no client answered in any of 3 rounds, .*=trace"),
    ],
)
def test_a_run_that_nobody_trained_is_no_result_and_says_the_likeliest_cause(tmp_path, options, scale, cause):
    """M3: it ended with exit code 0 and the score of the untrained model."""
    empty = tmp_path / "empty.csv"
    empty.write_text("round,client\n9,0\n")
    federation = conformance.small_federation()
    federation.x[...] = federation.x * np.float32(scale)
    options = {k: v.format(empty=empty) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(NothingUsed, match=f"^E316 .*{cause}") as error:
        unskew.run("fedavg", federation, **FAST, **options, name="r", folder=tmp_path)
    assert error.value.exit_code == 4
    run = read_run(tmp_path / "r")
    assert run.finished
    assert {scope for scope, _ in run.metrics} <= {"train"}  # no score of it gets into a table
    with pytest.raises(NothingUsed):  # nor does going on make it one
        unskew.run("fedavg", federation, **FAST, **options, name="r", folder=tmp_path)


def test_a_run_that_lost_many_replies_ends_with_a_warning(tmp_path):
    """A run of which 9 of 15 replies were dropped ended without a word but their number."""
    where = {"name": "r", "folder": tmp_path}
    options = {**FAST, **DIVERGING, "rounds": 2}
    result = unskew.run("fedavg", conformance.small_federation(), **options, **where)
    text = (
        f"{K} of {2 * K} replies were dropped, so the scores say little about fedavg: "
        "training diverges, most likely because lr=1e+30 is too high (try a tenth of it)."
    )
    assert result.table().endswith(f"\nWarning: {text}")
    for record in (
        result.record,
        unskew.run("fedavg", conformance.small_federation(), **options, **where).record,
    ):
        assert [e for e in record.rows["events"] if e["code"] == "E316"] == [
            {"t": 2, "code": "E316", "text": text}
        ]
    rows = summary_table([read_run(tmp_path / "r")])
    assert results_table.plain(rows).endswith(f"\nWarning: fedavg, 1 of 1 run, such as seed 0: {text}")
    assert text in page.warnings(context_of([read_run(tmp_path / "r")], "r"))[0]


@dataclass(frozen=True)
class Rooted(Part):
    """Its loss has no gradient at the weights that it starts from, from this round on."""

    since: int = 1
    name: ClassVar[str] = "rooted"

    def loss(self, w, out, b, c):
        far = sum((w[n] - c.start[n]).pow(2).sum() for n in c.net.trainable)
        return far.sqrt() if c.t >= self.since else far


@pytest.mark.parametrize("since", [1, 3])
def test_a_hook_of_a_users_own_is_suspected_beside_the_learning_rate(since):
    """The root of 0 in an own loss was blamed on lr alone, and trying a tenth of it changed nothing."""
    run = resolve(conformance.short_settings(**FAST), conformance.small_federation(), Rooted(since))
    with np.errstate(all="ignore"), pytest.raises(NothingUsed) if since == 1 else nullcontext() as error:
        result = unskew.run(Rooted(since), conformance.small_federation(), **FAST | {"rounds": 4})
    text = str(error.value) if since == 1 else doubt(run, UsedReplies.of(result.record.rows["events"]))
    assert f"lr={run.settings.lr:g} is too high" in text
    assert "a hook of 'rooted' returns no number" in text


def test_weights_that_are_older_than_the_last_round_are_a_doubt():
    """All replies of the last of four rounds are dropped, which is less than a third, and the scores of the
    run's end are those of round 3."""
    with np.errstate(all="ignore"):
        result = unskew.run(Rooted(since=4), conformance.small_federation(), **FAST | {"rounds": 4})
    assert "every reply of the last round was dropped" in result.table()


@pytest.mark.parametrize("side", ["client", "server"])
def test_an_exchange_that_brings_no_numbers_is_a_doubt(tmp_path, side):
    """Its answers were dropped in every round, and the table said that all replies were used."""

    def bad(tree):
        return {n: t * math.nan for n, t in tree.items()}

    def client(w, c):
        return bad({"v": torch.ones(3)}) if side == "client" else {"v": torch.ones(3)}

    trip = Trip(
        lambda t, T: True,
        client,
        lambda w, s, ups, fed: (bad(w) if side == "server" else w, s),
        lambda fed: {"v": Share((3,), kind="statistics", samples="client")},
    )
    mine = dataclass(frozen=True)(
        type("Mine", (Part,), {"name": "mine", "trips": (trip,), "__module__": __name__})
    )()
    result = unskew.run(mine, conformance.small_federation(), name="r", folder=tmp_path, **FAST)
    assert "Warning: in an exchange beside the training" in result.table()
    assert "in an exchange beside the training" in read_run(tmp_path / "r").doubt
