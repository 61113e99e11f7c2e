"""Who is sent which slices: what has changed, to those whom it concerns, and nothing twice.

Likely mistakes: a client that missed a message counts as having it; a row that another client reads is sent
when it changes; zeros travel; a resumed run sends everything again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import unskew
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.methods import registry
from unskew.round.clients import Broadcast
from unskew.round.deliveries import Deliveries
from unskew.runs import conformance

ALL = (0, 1, 2)


@dataclass(frozen=True)
class Table(Part):
    """Client k reads the row of `z` that `of` names, and its own entry of `of`."""

    name: ClassVar[str] = "table"
    row_of: ClassVar[dict[str, str]] = {"of": "", "z": "of"}


def slices(of: list[int], z: list[float], plain: float = 0.0) -> dict[str, dict[str, torch.Tensor]]:
    """Three clients; a row of `z` has 8 bytes, as an entry of `of`, and `plain` has 4."""
    rows = torch.tensor(z, dtype=torch.float32)[:, None].expand(3, 2).contiguous()
    return {"table": {"of": torch.tensor(of), "plain": torch.tensor(plain), "z": rows}}


def sent(deliveries: Deliveries, down, ids=ALL, arrived=None) -> dict[int, list[str]]:
    """The leaves that each client is sent, of which those of `arrived`, by default all, confirm it."""
    delivery = deliveries.send(Broadcast(1, 0.1, {}, down), ids)
    names = {
        k: [leaf + (f"[{row}]" if row >= 0 else "") for (_, leaf), row in delivery.contents(k)] for k in ids
    }
    size = {"of": 8, "plain": 4, "z": 8}
    assert delivery.bytes("table") == {k: sum(size[n[:-3] if "[" in n else n] for n in names[k]) for k in ids}
    delivery.settle(ids if arrived is None else arrived)
    return names


def fresh() -> Deliveries:
    deliveries = Deliveries(Method(Table()), 3)
    deliveries.begin(slices([-1, -1, -1], [0, 0, 0]))
    return deliveries


def test_a_leaf_goes_to_those_whom_it_concerns_once_and_zeros_never():
    deliveries = fresh()
    assert sent(deliveries, slices([-1, -1, -1], [0, 0, 0])) == {k: [f"of[{k}]"] for k in ALL}
    assert sent(deliveries, slices([2, -1, 2], [0, 0, 5])) == {
        0: ["of[0]", "z[2]"],
        1: [],
        2: ["of[2]", "z[2]"],
    }
    assert sent(deliveries, slices([2, -1, 2], [7, 7, 5], 1.0)) == {k: ["plain"] for k in ALL}
    assert sent(deliveries, slices([2, 0, 2], [7, 7, 5], 1.0)) == {0: [], 1: ["of[1]", "z[0]"], 2: []}
    assert sent(deliveries, slices([2, 0, 2], [8, 7, 5], 0.0)) == {
        0: ["plain"],
        1: ["plain", "z[0]"],
        2: ["plain"],
    }


def test_who_has_not_answered_is_sent_it_again():
    deliveries, down = fresh(), slices([-1, -1, -1], [0, 0, 0], 1.0)
    assert sent(deliveries, down, arrived=[0]) == {k: [f"of[{k}]", "plain"] for k in ALL}
    assert sent(deliveries, down, ids=(0, 2), arrived=[0, 2]) == {0: [], 2: ["of[2]", "plain"]}
    assert sent(deliveries, down) == {0: [], 1: ["of[1]", "plain"], 2: []}
    deliveries.forget([2])
    assert sent(deliveries, down) == {0: [], 1: [], 2: ["of[2]", "plain"]}


def test_equal_numbers_in_a_new_tensor_are_not_sent_and_a_zero_of_another_sign_is():
    deliveries, ones = fresh(), slices([-1, -1, -1], [0, 0, 0], 1.0)
    sent(deliveries, ones)
    assert sent(deliveries, {"table": {n: t.clone() for n, t in ones["table"].items()}}) == {
        k: [] for k in ALL
    }
    minus = slices([-1, -1, -1], [0, 0, 0], -0.0)
    sent(deliveries, slices([-1, -1, -1], [0, 0, 0], 0.0))
    assert sent(deliveries, minus) == {k: ["plain"] for k in ALL}


@pytest.mark.usefixtures("few_attempts")
def test_a_resumed_run_sends_nothing_again(tmp_path):
    method = "fedmix+feddpms(alpha=5, width=8)"

    def stop(state, summary):
        if summary.t == 3:
            raise KeyboardInterrupt

    settings = {"clients": 6, "samples": 20, "rounds": 5, "epochs": 1, "model": "mlp", "seed": 2}
    settings |= {"availability": "bernoulli:0.6", "workers": 1, "folder": tmp_path, "data": "digits"}
    unskew.run(method, name="whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        unskew.run(method, name="stopped", shown=stop, **settings)
    unskew.run(method, name="stopped", **settings)
    whole, stopped = (
        [json.loads(line) for line in (tmp_path / name / "ledger.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    )
    assert stopped == whole
    pools = [r for r in whole if (r["way"], r["share"]) == ("down", "fedmix")]
    assert (
        sum(len(r["clients"]) for r in pools) < sum(len(r["clients"]) for r in whole if r["share"] == "w") / 2
    )


def test_an_exchange_that_reads_no_weights_sends_none():
    made = conformance.loop_for(registry.parse("fedmix"))
    made.begin()
    assert {(r["way"], r["share"]) for r in made.record.rows["ledger"]} == {
        ("up", "fedmix/x"),
        ("up", "fedmix/y"),
    }


@pytest.mark.parametrize("method", ["fedrdn", "feddata"])
def test_what_is_shared_before_training_comes_from_every_client_whoever_trains_first(method):
    result = unskew.run(method, "digits", clients=5, rounds=1, availability="sample:0.4", model="mlp")
    shared = [row["clients"] for row in result.record.rows["ledger"] if row["t"] == 0 and row["way"] == "up"]
    assert shared
    assert all(clients == [0, 1, 2, 3, 4] for clients in shared)
