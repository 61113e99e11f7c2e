"""Over a network encoded weights are fewer bytes, and a site that encodes nonsense is named while the run
goes on."""

from __future__ import annotations

import json

import torch

from tests.federation import fake
from tests.federation.test_bad import BAD, again, opened
from unskew.federation.protocol.signed_messages import SignedMessage


def repeated(tree):
    return tree | {"indices": tree["indices"].sort().values * 0 + 1}


def nowhere(tree):
    return tree | {"indices": tree["indices"] + 10**8}


def not_a_number(tree):
    return tree | {"values": tree["values"] * float("nan")}


def far_too_large(tree):
    return tree | {"values": tree["values"] + 10}


def a_bomb(tree):
    return tree | {"values": torch.zeros(10**6)}


def a_tree(tree):
    return tree | {"values": {"x": tree["values"]}}


def nothing(tree):
    return torch.zeros(1)


WORSE = {
    repeated: "E303",
    nowhere: "E303",
    not_a_number: "E301",
    far_too_large: "E318",
    a_bomb: "E303",
    a_tree: "E303",
    nothing: "E303",
}


def test_a_site_that_encodes_nonsense_is_named_in_each_round_and_the_run_goes_on(tmp_path):
    """One kind of nonsense a round; honest replies are a fraction of what the weights would take."""
    sizes, kinds = {}, list(WORSE)

    def meddle(site: str, asked: SignedMessage, honest: SignedMessage):
        told = json.loads(asked.text)
        if told["kind"] != "train":
            return honest
        sizes[told["t"], site] = len(asked.blob), len(honest.blob)
        if site != BAD:
            return honest
        packet = opened(honest)
        shares = packet.tree["shares"]["topk"]
        shares["encoded"] = kinds[told["t"] - 1](shares["encoded"])
        return again(packet)

    settings = fake.small("topk", rounds=len(WORSE), eval_every=99)
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddle)
    loop, state, _ = fake.run(tmp_path / "run", channel, settings)
    events = [e for e in loop.record.rows["events"] if e["code"] != "round"]
    assert [e["code"] for e in events] == list(WORSE.values())
    assert all(BAD in e["text"] for e in events)
    assert (
        "encoded cannot be read: its indices do not grow. Reply dropped (4 of 5 used)." in events[0]["text"]
    )
    assert "it changes the model's weights by " in events[list(WORSE).index(far_too_large)]["text"]
    used = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert used == [[0, 1, 3, 4]] * len(WORSE)
    assert all(bool(t.isfinite().all()) for t in state.weights.values())
    assert all(up < 0.12 * down for down, up in sizes.values())
    charged = [
        r["bytes"] for r in loop.record.rows["ledger"] if r["way"] == "up" and r.get("encoded") == "topk"
    ]
    assert 0 <= sizes[2, "s0"][1] - charged[0] < 512, "beside them only the tensors' names travel"
