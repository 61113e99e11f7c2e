"""What a site counts of what has left it, by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError
from unskew.federation.site.site_ledger import (
    KEPT_ROUNDS,
    LEDGER_FILE,
    MOST_ORDERS,
    AnsweredRequest,
    RunLedger,
    SiteLedger,
)


def begun(folder, **epsilons: float) -> SiteLedger:
    """A site at which runs with these figures have begun."""
    (folder / "runs").mkdir()
    for number, epsilon in epsilons.items():
        (folder / "runs" / number).mkdir()
        kinds = {"weights": "weights", "p/s": "sums"}
        SiteLedger.read(folder).begin(number, RunLedger("study", "fedavg", 9, 1.0, epsilon, kinds=kinds))
    return SiteLedger.read(folder)


def test_bytes_are_those_of_the_numbers_types_and_the_last_round_is_the_latest(tmp_path):
    spent = begun(tmp_path, r1=0.0)
    tree = {
        "w/a": torch.zeros(3),
        "w/b": torch.zeros(2, dtype=torch.float64),
        "shares/p/s": torch.zeros(5, dtype=torch.uint8),
    }
    spent.add("r1", AnsweredRequest("train", 4, "x"), tree, {})
    spent.add("r1", AnsweredRequest("train", 3, "y"), {"early/p/s": torch.zeros(2, dtype=torch.int64)}, {})
    run = SiteLedger.read(tmp_path).runs["r1"]
    assert (run.bytes, run.t, run.answers) == (12 + 16 + 5 + 16, 4, {"train": 2})
    rows = [json.loads(line) for line in (tmp_path / "runs/r1" / LEDGER_FILE).read_text().splitlines()]
    assert [(r["t"], r["asked"], r["share"], r["bytes"]) for r in rows] == [
        (4, "train", "weights", 28), (4, "train", "p/s", 5), (3, "train", "p/s", 16)
    ]  # fmt: skip
    assert [r.get("values") for r in rows] == [None] * 3
    spent.add("r1", AnsweredRequest("score", 4, "z"), {"score/own": torch.tensor([0.1234567])}, {})
    assert json.loads((tmp_path / "runs/r1" / LEDGER_FILE).read_text().splitlines()[-1])["values"] == [
        0.123457
    ]


def test_epsilons_of_all_runs_add_up_and_what_is_infinite_stays_so(tmp_path):
    spent = begun(tmp_path, r1=1.5, r2=2.0, r3=0.0)
    assert spent.epsilon == 3.5
    spent.begin("r4", RunLedger("study", "fedavg", 9, 1.0, math.inf))
    text = (tmp_path / "spent.json").read_text()
    assert "Infinity" not in text  # which is no JSON
    assert SiteLedger.read(tmp_path).runs["r4"].epsilon == math.inf
    assert SiteLedger.read(tmp_path).epsilon == math.inf


def test_what_was_not_declared_is_refused_whichever_way_it_leaves(tmp_path):
    spent = begun(tmp_path, r1=0.0)
    spent.check_declared("r1", ["w/a", "shares/p/s/conv.weight", "early/p/s", "score/own", "sum"])
    for path in ("shares/p/t", "early/p/t", "shares/q/s", "p/s/x"):
        with pytest.raises(
            UsageError, match=r"E520 .* is not among what the study of run r1 said would leave"
        ):
            spent.check_declared("r1", [path])


def test_a_share_of_a_round_is_sent_for_few_orders_and_old_rounds_are_forgotten():
    run = RunLedger("study", "fedavg", 9, 1.0)
    for order in ("a", "b", "c", "a", "c"):
        run.order(1, ["w"], order)
    with pytest.raises(
        UsageError, match=f"E520 .*'w' of round 1 was sent for {MOST_ORDERS} different orders already"
    ):
        run.order(1, ["w"], "d")
    run.order(1, ["p/s"], "d")
    run.t = 1 + KEPT_ROUNDS
    run.order(run.t, ["w"], "a")
    assert set(run.orders) == {str(run.t)}
    run.check_round(2)
    with pytest.raises(UsageError, match=r"E520 .*the run has come to round 6 here, and round 1 is over"):
        run.check_round(1)
