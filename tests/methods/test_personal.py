"""Personalised methods: what they refuse, and whose model each score is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unskew.engine import testbed
from unskew.engine.assemble import loop_of
from unskew.engine.resolve import resolve
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.fedrod import FedRoD


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "fedper+lg_fedavg",
            "fedper and lg_fedavg each divide the model into what is shared and what is not; keep one",
        ),
        ("fedbabu+fedrod", "fedbabu and fedrod each divide the model"),
        ("fedrep+fedper", "each divide the model"),
        ("ditto+apfl", "ditto and apfl each make a client's own model; keep one"),
        ("pfedme+fedsam", "each say at which weights a step's gradient is taken; keep one"),
        ("pfedme(beta=0.5)+fedavgm", "each replace the merge"),
        ("fedrod+bsm", "both put the client's label counts into the logits"),
        ("fedrod+unskew", "cannot be combined|each make a client's own model; keep one"),
    ],
)
def test_what_makes_no_sense_together_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"E107 .*({why})"):
        registry.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedper(blocks=9)", r"its 9 last blocks are the whole model \(.*\); take at most"),
        ("lg_fedavg(blocks=4)", "its 4 last blocks are the whole model"),
    ],
)
def test_a_model_that_cannot_be_divided_so_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"E108 '.*' cannot run here: {why}"):
        resolve(testbed.settings(), testbed.federation(), registry.parse(text))


def scored(text: str) -> tuple[dict[tuple[str, str], float], float]:
    """(scope, metric) -> the score after a round in which half of the clients took part; and the server's model's accuracy."""
    loop = loop_of(testbed.run_for(registry.parse(text), rounds=1, availability="sample:0.5"))
    try:
        state, told = loop.round(loop.begin(), 1)
        rows = loop.evaluate(state, told)
        guess = loop.evaluation.outputs(-1, loop.down(state, 1), {}).argmax(1).numpy()
    finally:
        loop.trainer.close()
    of_all = {(r["scope"], r["metric"]): r["value"] for r in rows if r["client"] is None}
    return of_all, float((guess == loop.evaluation.y).mean())


def test_the_global_score_is_the_servers_models_also_where_clients_keep_a_head_beside_it() -> None:
    """Else it was the mean over the rows of those clients alone that have taken part."""
    of_all, of_model = scored("fedrod")
    assert of_all["global", "accuracy"] == pytest.approx(of_model)
    assert of_all["personal@client", "mean"] != of_all["global@client", "mean"]


def test_the_personal_head_of_fedrod_begins_at_0():
    begin = {"body.weight": torch.ones(2), "head.weight": torch.ones(2)}
    net = SimpleNamespace(weights=lambda: begin, of_head=lambda name: name.startswith("head."))
    assert {n: t.tolist() for n, t in FedRoD().weights(SimpleNamespace(net=net)).items()} == {"head.weight": [0, 0]}
