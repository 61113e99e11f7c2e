"""Personalised methods: what they refuse, and whose model each score is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unskew.core import Batch, Out
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.ditto import Ditto
from unskew.methods.fedem import FedEM
from unskew.methods.fedrod import FedRoD
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "fedper+lg_fedavg",
            "fedper and lg_fedavg each divide the model into what is shared and what is not; keep one",
        ),
        ("fedbabu+fedrod", "fedbabu and fedrod each divide the model"),
        ("fedrep+fedper", "each divide the model"),
        ("local+fedper", "each divide the model"),
        ("ditto+apfl", "ditto and apfl each make a client's own model; keep one"),
        ("pfedme+fedsam", "each say at which weights a step's gradient is taken; keep one"),
        ("pfedme(beta=0.5)+fedavgm", "each replace the merge"),
        ("fedrod+bsm", "both put the client's label counts into the logits"),
        ("scaffold+fedrep", "its control variates divide a change by all local steps"),
        ("fedah+scaffold", "its control variates divide a change by all local steps"),
        ("scaffold+fedfomo", "the steps begin elsewhere than at the model that the client is sent"),
        ("fedala+fednova", "the steps begin elsewhere than at the model that the client is sent"),
        ("fedcm+dfedavg", "each client begins at a model of its own"),
        ("mofedsam+cfl", "each client begins at a model of its own"),
        ("fedcm+fedspeed", "a client sends something else than the weights at which its steps ended"),
        ("fednova+fedrep", "it divides a change by all local steps"),
        ("fedcm+fedrep", "it divides the last move by all local steps"),
        ("mofedsam+fedpac", "it divides the last move by all local steps"),
        ("fedrod+fedvls", "both put the client's label counts into the logits"),
        ("fedrod+unskew", "cannot be combined|each make a client's own model; keep one"),
    ],
)
def test_what_makes_no_sense_together_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"E107 .*({why})"):
        registry.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedgen+fedper", "it needs the head that clients have in common, and they keep 'head"),
        ("fedgen_images+lg_fedavg", "it needs the model that clients have in common, and they keep 'conv1"),
        ("fedavg_ft+lg_fedavg", "it needs the model that clients have in common, and they keep 'conv1"),
        ("fedavg_ft+local", "it needs the model that clients have in common"),
        ("ccvr+fedrep", "it needs the head that clients have in common, and they keep 'head"),
        ("fedfed+fedgh", "its generator is of all clients, and they keep 'fedfed"),
    ],
)
def test_a_server_does_not_learn_from_what_clients_keep(text: str, why: str) -> None:
    """It would have taken the weights that these began with for theirs, or trained a head that nobody
    receives."""
    with pytest.raises(UsageError, match=f"E108 '.*' cannot run here: {why}"):
        resolve(conformance.short_settings(), conformance.small_federation(), registry.parse(text))


@pytest.mark.parametrize(
    "text",
    ["fedgen+lg_fedavg", "ccvr+lg_fedavg", "fedgen_images+fedbabu", "fedavg_ft+ditto", "fedfed+fedper"],
)
def test_a_server_learns_from_what_clients_share_beside_what_they_keep(text: str) -> None:
    assert (
        resolve(conformance.short_settings(), conformance.small_federation(), registry.parse(text)).fed.kept
        or "fedbabu" in text
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedper(blocks=9)", r"its 9 last blocks are the whole model \(.*\); take at most"),
        ("lg_fedavg(blocks=4)", "its 4 last blocks are the whole model"),
    ],
)
def test_a_model_that_cannot_be_divided_so_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"E108 '.*' cannot run here: {why}"):
        resolve(conformance.short_settings(), conformance.small_federation(), registry.parse(text))


def scored(text: str) -> tuple[dict[tuple[str, str], float], float]:
    """(scope, metric) -> the score after a round in which half of the clients took part; and the server's
    model's accuracy."""
    loop = loop_of(conformance.run_for(registry.parse(text), rounds=1, availability="sample:0.5"))
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


def test_a_clients_own_model_is_the_model_without_what_other_parts_train_beside_it() -> None:
    net = conformance.run_for(registry.parse("fedavg")).fed.net.copy()
    names = set(net.weights())
    net.add({"other.scale": torch.ones(1)})
    own = Ditto()
    assert set(own.weights(SimpleNamespace(net=net))) == names
    assert own.keeps("ditto.head.weight", SimpleNamespace(net=net))
    assert not own.keeps("ditto_head.weight", SimpleNamespace(net=net))  # a layer of the model


def test_the_personal_head_of_fedrod_begins_at_0():
    begin = {"body.weight": torch.ones(2), "head.weight": torch.ones(2)}
    net = SimpleNamespace(weights=lambda: begin, of_head=lambda name: name.startswith("head."))
    assert {n: t.tolist() for n, t in FedRoD().weights(SimpleNamespace(net=net)).items()} == {
        "head.weight": [0, 0]
    }


def test_fedem_mixes_models_by_how_well_they_explain_a_clients_samples() -> None:
    """Two models that say p(0) = 0.8 and 0.2 of everything; a client with three samples of class 0 and one of
    class 1, whose pi is (1/2, 1/2): q of model 0 is 0.8 for class 0 and 0.2 for class 1, so pi becomes (0.65,
    0.35)."""
    part = FedEM(models=2)
    says = torch.tensor([0.8, 0.2]).log()
    w = {"z": says, "fedem.1.z": says.flip(0), "fedem.pi": torch.tensor([0.5, 0.5])}
    y = torch.eye(2)[torch.tensor([0, 0, 0, 1])]
    b = Batch(torch.zeros(4, 1), y, torch.ones(4))

    def run(w, x):
        return w["z"].expand(len(x), 2)

    def loss(z, y):
        return -(y * z.log_softmax(1)).sum(1)

    c = SimpleNamespace(
        start=w, run=run, run_training=run, fed=SimpleNamespace(task=SimpleNamespace(loss=loss))
    )
    c.total = lambda measure: measure(b)
    pi = part.begin(w, c)["pi"]
    torch.testing.assert_close(pi, torch.tensor([0.65, 0.35]))
    out = Out(logits=run(w, b.x), raw=run(w, b.x), features=b.x, own=b)
    l0, l1 = -torch.tensor(0.8).log(), -torch.tensor(0.2).log()
    own = 3 * 0.8 * l0 + 0.2 * l1 + 3 * 0.2 * l1 + 0.8 * l0
    torch.testing.assert_close(part.loss(w, out, b, c), (own - 3 * l0 - l1) / 4)
    c.start, c.inputs = w | {"fedem.pi": pi}, torch.zeros(1, 1)
    z = part.scores(run(w, c.inputs), c.inputs, c)
    torch.testing.assert_close(z.exp(), torch.tensor([[0.65 * 0.8 + 0.35 * 0.2, 0.65 * 0.2 + 0.35 * 0.8]]))


def test_fedem_scores_clients_with_their_own_shares_of_the_models() -> None:
    scores, _ = scored("fedem")
    assert scores["personal@client", "mean"] != scores["global@client", "mean"]


@pytest.mark.parametrize(
    ("text", "model", "why"),
    [
        ("fedem+fedper", "mlp", "other Parts keep or freeze some of the first one's"),
        ("fedem", "cnn_small(batch_norm=True)", "running statistics of batch normalisation in common"),
    ],
)
def test_fedem_refuses_models_that_are_not_wholly_common(text: str, model: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"E108 'fedem' cannot run here: .*{why}"):
        resolve(conformance.short_settings(model=model), conformance.small_federation(), registry.parse(text))


def test_a_share_of_apfl_stays_a_number_where_the_learning_rate_has_fallen_to_0():
    """0 / 0 was no bound for a share at one of its ends, and every reply was dropped (E301)."""
    settings = conformance.short_settings(rounds=3, lr_rounds=1.0)
    loop = loop_of(
        resolve(settings, conformance.small_federation(), registry.parse("apfl(alpha=1.0, moves='step')"))
    )
    state = loop.begin()
    for t in (1, 2, 3):
        state, summary = loop.round(state, t)
        assert (summary.answered, summary.dropped) == ((loop.fed.sizes > 0).sum(), 0)
    loop.trainer.close()
