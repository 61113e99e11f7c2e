"""Secure aggregation in a simulation: the sums are those of a naive count, nothing else reaches the server,
and what cannot be summed is refused by name."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import pytest
import torch

import unskew
from unskew.core import Fed, Part, Share, gate
from unskew.core.method import Method
from unskew.core.replies import Reply
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.privacy.fixed_point import FixedPoint, shares_of_weight
from unskew.privacy.secure_aggregation import parse
from unskew.report import page
from unskew.runs import conformance
from unskew.runs.conformance import CheckFailed, Subject

QUICK = {"rounds": 2, "epochs": 1, "batch": 16, "workers": 1, "lanes": "8", "model": "mlp"}
THERE = int((conformance.small_federation().sizes > 0).sum())


def run(method="fedavg", **changes):
    return unskew.run(
        method, conformance.small_federation(), **{**QUICK, "secure_aggregation": "on", **changes}
    )


@functools.cache
def plain() -> unskew.Result:
    return run("scaffold")


def texts(result, code: str) -> list[str]:
    return [e["text"] for e in result.record.rows["events"] if e["code"] == code]


def test_the_sum_is_that_of_exact_fractions_rounded_to_steps():
    """q_k = round(2^F x_k), halves to even, is a whole number whose sum no order changes."""
    w = {"a": torch.tensor([0.1, -2.0]), "b": torch.tensor([[3.0]])}
    sent = [
        Reply(k, float(k), {n: t + 0.37 * k for n, t in w.items()}, {"p": {"s": torch.tensor([k / 3])}})
        for k in (1, 2, 5)
    ]
    spec = gate.Spec({"a": (2,), "b": (1, 1)}, {"p": {"s": Share((1,))}}, dict.fromkeys("ab", torch.float32))
    numbers, p_K = FixedPoint(spec, 4.0, 20, 64), shares_of_weight([1, 2, 5], "size", 1.0)
    total = sum(numbers.numbers(r, w, p) for r, p in zip(sent, p_K))
    answer = numbers.replies(total, w, sent, sum(p_K))

    def summed(x_K: list[Fraction]) -> Fraction:
        return sum((Fraction(round(x * 2**20), 2**20) for x in x_K), Fraction(0))

    moved = [Fraction(float(r.weights["a"][0])) - Fraction(float(w["a"][0])) for r in sent]
    want = Fraction(float(w["a"][0])) + summed([m * Fraction(p) for m, p in zip(moved, p_K)])
    assert [r.client for r in answer] == [1, 2, 5]
    assert all(
        float(r.weights["a"][0]) == float(torch.tensor(float(want), dtype=torch.float32)) for r in answer
    )
    shared = summed([Fraction(float(r.shares["p"]["s"])) for r in sent]) / 3
    assert float(answer[0].shares["p"]["s"]) == float(torch.tensor(float(shared), dtype=torch.float32))


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        ("on", 1000),
        ("on,bits=32,clip=8", 4),
        ("on,bits=32,clip=8", 64),
        ("on,bits=32,clip=0.5", 1024),
    ],
)
def test_no_sum_of_honest_numbers_leaves_its_range(text, clients):
    """Where all of them are cut, of four or of 64 clients, the sum was the first number out of range: its
    sign turned, and nobody noticed."""
    secure = parse(text)
    assert secure
    numbers = FixedPoint(
        gate.Spec({"a": (2,)}, {}, {"a": torch.float32}), secure.clip, secure.fraction(clients), secure.bits
    )
    w, wild = {"a": torch.zeros(2)}, {"a": torch.tensor([1e30, -1e30])}
    one = numbers.numbers(Reply(0, 1.0, wild, loss=1e12), w, 1.0)
    total = (one * clients).to(torch.int32 if secure.bits == 32 else torch.int64)
    assert numbers.problem(total.long(), clients) is None
    (reply,) = numbers.replies(total.long(), w, [Reply(0, 1.0, {})], float(clients))
    assert reply.weights["a"].tolist() == pytest.approx([secure.clip, -secure.clip])
    assert reply.loss == pytest.approx(clients * secure.clip)


def test_a_sum_out_of_range_is_noticed_and_the_lowest_number_too():
    numbers = FixedPoint(gate.Spec({"a": (2,)}, {}, {"a": torch.float32}), 1.0, 20, 64)
    most = 3 * ((1 << 20) - 1)
    fine = torch.tensor([5, 0, most, -most])
    assert numbers.problem(fine, 3) is None
    for at, wild in ((2, most + 1), (3, -(2**63)), (0, 2**62), (1, -1)):
        bad = fine.clone()
        bad[at] = wild
        assert (numbers.problem(bad, 3) or "").startswith("1 of its 4 numbers are out of the range")


@pytest.mark.parametrize("method", ["fedavg", "rebafl", "fedproto+feddyn"])
def test_a_run_ends_where_it_does_without(method):
    """All the server's hooks read the sums they would read of single replies."""
    secured, open_ = run(method), run(method, secure_aggregation="off")
    assert secured.digest != open_.digest
    for name, tensor in open_.weights.items():
        assert float((tensor - secured.weights[name]).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("flea", "with 'flea': it exchanges 'flea/features' beside training"),
        ("fednova", "with 'fednova': it reads 'fednova/a' of each client"),
        ("median", "with 'median': it reads each client's weights"),
        ("fedprox+clip_median", "with 'clip_median': it reads each client's weights"),
    ],
)
def test_what_reads_single_replies_is_refused_by_name(method, why):
    changes = {"model": "cnn_small"} if "f" in method[:3] else {}
    with pytest.raises(UsageError, match="E108") as refusal:
        run(method, **changes)
    assert why in str(refusal.value)
    assert "secure_aggregation=off" in str(refusal.value)


@dataclass(frozen=True)
class Spread(Part):
    """Says that its Share is read as a sum, and reads a variance."""

    name: ClassVar[str] = "spread"

    def shares(self, fed: Fed) -> dict[str, Share]:
        return {"n": Share((), kind="statistics")}

    def finish(self, w, c):
        return {"n": c.n.float()}, {}

    def server(self, s, ups, fed):
        return {"v": ups["n"].var(correction=0)}

    def refine(self, w, s, fed, t):
        return {n: v + s["v"] for n, v in w.items()}, s


def test_a_part_that_reads_more_than_the_sums_it_declares_fails_its_check():
    """FedFA said that its statistics were read as sums, and took their variance over clients."""
    with pytest.raises(CheckFailed, match="declare what is read apart as reads='each'"):
        conformance.reads_sums_where_it_says_so(Subject(Spread()))
    assert "largest difference" in conformance.reads_sums_where_it_says_so(
        Subject(registry.parse("scaffold").parts[0])
    )


def test_two_clients_are_refused_and_a_round_with_two_is_skipped():
    """Of two sites each knows the other's part of the sum."""
    with pytest.raises(UsageError, match=r"E108 .*takes 3 clients"):
        unskew.run("fedavg", "digits", clients=2, secure_aggregation="on", rounds=1)
    loop = conformance.loop_for(Method(), availability="sample:0.25", secure_aggregation="on")
    before = loop.begin()
    after, summary = loop.round(before, 1)
    assert (summary.asked, summary.answered) == (2, 0)
    assert after.weights is before.weights
    skipped = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E309"]
    assert any(text.endswith("a sum is opened over 3 or more. Nothing was summed.") for text in skipped)
    assert not [r for r in loop.record.rows["ledger"] if r["way"] == "up"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yes", "unknown secure_aggregation 'yes'"),
        ("on,bits=16", "bits must be 32 or 64"),
        ("on,bits=32", "32 bits leave steps of"),
        ("on,mask=none", "no argument 'mask'"),
    ],
)
def test_wrong_texts_are_refused_in_a_sentence(text, why):
    with pytest.raises(UsageError, match=r"E109|E108") as refusal:
        run(secure_aggregation=text)
    assert why in str(refusal.value)


def test_numbers_that_are_cut_are_counted_where_the_result_stands():
    cut = run(secure_aggregation="on,clip=0.001", rounds=1)
    (text,) = texts(cut, "E322")
    assert text.startswith("round 1: ")
    assert "were larger than clip=0.001 and were cut to it" in text
    before = run(rounds=1, lr=1e-30, secure_aggregation="off").weights
    moved = max(float((t - before[n]).abs().max()) for n, t in cut.weights.items())
    assert 0 < moved <= THERE * 0.001 + 1e-6
    assert "in 1 of 1 rounds numbers larger than secure_aggregation's clip were cut" in cut.table()
    assert not texts(plain(), "E322")


def test_a_client_with_nan_takes_no_part_and_is_named():
    @dataclass(frozen=True)
    class Bad(Part):
        name: ClassVar[str] = "bad"

        def grad(self, g, w, c):
            return {n: torch.where(torch.as_tensor(c.id == 0), torch.nan, t) for n, t in g.items()}

    result = unskew.run(Bad(), conformance.small_federation(), **QUICK, secure_aggregation="on")
    assert [text[:16] for text in texts(result, "E301")] == ["client-0 round 1", "client-0 round 2"]
    used = [len(e["answered"]) for e in result.record.rows["events"] if e["code"] == "round"]
    assert used == [THERE - 1] * QUICK["rounds"]


def test_the_ledger_and_the_report_say_only_in_the_sum(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("rebafl", name="r")
    up = [r for r in result.record.rows["ledger"] if r["way"] == "up"]
    assert {r["share"] for r in up} == {"w", "rebafl/sums", "rebafl/counts"}
    assert all(r["sum_of"] == THERE for r in up)
    counted = sum(t.numel() for t in result.weights.values())
    assert next(r["bytes"] for r in up if r["share"] == "w") == 8 * counted
    page.write_report([tmp_path / "runs/r"], tmp_path / "r.html")
    assert f"only the sum of {THERE} or more" in (tmp_path / "r.html").read_text()
