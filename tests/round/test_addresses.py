"""Weights lie where torch would put them, in one process as after a message or on a disk: kernels give other
last bits elsewhere.

Likely mistakes: a client's part of a stack of several clients is kept, or sent to it, as it lies in the
stack.
"""

import numpy as np
import pytest
import torch

import unskew
from unskew.core.trees import leaves
from unskew.records.private_state import MemoryStore
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation

RNG = np.random.default_rng(0)
DATA = (RNG.normal(size=(90, 7)).astype(np.float32), np.arange(90) % 3)


@pytest.mark.parametrize(("method", "lanes"), [("fedper", "4"), ("ditto", "4"), ("fedamp", "1")])
def test_weights_are_scored_where_a_site_has_them(method, lanes, monkeypatch):
    """Clients that train side by side kept views of one stack, whose biases of three numbers lie at odd
    addresses; so did weights that the server mixes for each client."""
    seen: list[int] = []
    outputs_of = Evaluation.outputs_of

    def watched(self, rows, k, start, private, w):
        seen.extend(t.data_ptr() % 64 for t in w.values())
        seen.extend(t.data_ptr() % 64 for _, t in leaves(private))
        return outputs_of(self, rows, k, start, private, w)

    monkeypatch.setattr(Evaluation, "outputs_of", watched)
    settings = {"model": "mlp", "clients": 4, "rounds": 2, "epochs": 1, "batch": 8, "skew": "iid"}
    unskew.run(method, DATA, lanes=lanes, **settings)
    assert len(seen) > 20
    assert not any(seen)


def test_what_is_kept_and_sent_is_moved_once_and_only_where_it_must_be():
    stack = torch.arange(12.0).reshape(4, 3)
    whole = torch.zeros(16)
    store = MemoryStore()
    store.put(1, {0: {"kept": {"b": stack[1], "w": whole}}})
    kept = store.fetch([0])[0]["kept"]
    assert kept["b"].data_ptr() % 64 == 0
    assert torch.equal(kept["b"], stack[1])
    assert kept["w"] is whole
    start = Broadcast(1, 0.1, {}, {}, lambda k: ({"b": stack[k], "w": whole}, {"p": {"mean": stack[k]}}))
    sent = start.to(3)
    assert sent.weights["w"] is whole
    assert torch.equal(sent.weights["b"], stack[3])
    assert torch.equal(sent.down["p"]["mean"], stack[3])
    assert {t.data_ptr() % 64 for t in (sent.weights["b"], sent.down["p"]["mean"])} == {0}
