"""Methods that are refused together or with a model, and whose model each score is."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from tests.fixtures import assert_close, batch, client, samples_of
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.augment import Augment
from unskew.methods.ditto import Ditto
from unskew.methods.fedcp import FedCP
from unskew.methods.fedlc import FedLC
from unskew.methods.fedpcl import FedPCL
from unskew.methods.fedrs import FedRS
from unskew.methods.floco import Floco
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedper+lg_fedavg", "fedper and lg_fedavg each divide the model into what is shared"),
        ("ditto+apfl", "ditto and apfl each make a client's own model; keep one"),
        ("pfedme+fedsam", "each say at which weights a step's gradient is taken; keep one"),
        ("pfedme(beta=0.5)+fedavgm", "each replace the merge"),
        ("fedrod+bsm", "both put the client's label counts into the logits"),
        ("scaffold+fedrep", "its control variates divide a change by all local steps"),
        ("scaffold+fedfomo", "the steps begin elsewhere than at the model that the client is sent"),
        ("fedcm+dfedavg", "each client begins at a model of its own"),
        ("fedcm+fedspeed", "a client sends something else than the weights at which its steps ended"),
        ("fednova+fedrep", "it divides a change by all local steps"),
        ("mofedsam+fedpac", "it divides the last move by all local steps"),
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
        ("ccvr+fedrep", "it needs the head that clients have in common, and they keep 'head"),
        ("fedfed+fedgh", "its generator is of all clients, and they keep 'fedfed"),
    ],
)
def test_a_server_does_not_learn_from_what_clients_keep(text: str, why: str) -> None:
    """It would have taken their first weights for theirs, or trained a head that nobody receives."""
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


def scored(text: str) -> tuple[dict[tuple[str, str], float], float]:
    """(the score by (scope, metric) after a round of half of the clients, the server's model's accuracy)."""
    loop = loop_of(conformance.run_for(registry.parse(text), rounds=1, availability="sample:0.5"))
    state, told = loop.round(loop.begin(), 1)
    rows = loop.evaluate(state, told)
    guess = loop.evaluation.outputs(-1, loop.down(state, 1), {}).argmax(1).numpy()
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


def test_a_share_of_apfl_stays_a_number_where_the_learning_rate_has_fallen_to_0():
    """0 / 0 was no bound for a share at one of its ends, and every reply was dropped, which raises here."""
    conformance.train_run(registry.parse("apfl(alpha=1.0, moves='step')"), lr_rounds=1.0)


def test_fedrs_leaves_masked_classes_masked():
    """-inf times alpha = 0 was NaN."""
    z = torch.tensor([[1.0, 2.0, -math.inf]], requires_grad=True)
    scaled = FedRS(alpha=0.0).logits(z, batch(), client())
    assert scaled.tolist() == [[1.0, 2.0, -math.inf]]
    scaled.logsumexp(1).sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("text", ["bsm+flea", "bsm+rebafl", "fedgen+local"])
def test_masks_do_not_meet_labels_from_elsewhere(text):
    with pytest.raises(UsageError, match="cannot be combined"):
        registry.parse(text)


BY_COUNTS = ["bsm", "fedetf", "fedlc", "fedrod", "fedvls", "rebafl", "unskew"]


def test_logits_are_corrected_by_class_counts_once():
    for pair in itertools.combinations(BY_COUNTS, 2):
        with pytest.raises(UsageError, match=r"E107 .* (cannot be combined|each make a client.s own model)"):
            registry.parse("+".join(pair))


@pytest.mark.parametrize("text", ["flea+fedntd", "flea+moon", "flea+fedkd", "flea+fedcp"])
def test_a_teacher_that_would_not_see_the_mixture_is_refused(text):
    """The student saw FLea's mixture and the teacher the sample alone, 31 % apart."""
    with pytest.raises(UsageError, match=r"E107 .* cannot be combined: .* FLea's mixture"):
        registry.parse(text)


@pytest.mark.parametrize("masks", ["bsm", "fedetf", "rebafl(eps=0)"])
def test_fedrs_beside_a_mask_of_the_classes_that_it_would_scale_is_refused(masks):
    """The pair trained to the bits of the mask alone, under a name of its own."""
    for text in (f"{masks}+fedrs", f"fedrs(alpha=0)+{masks}"):
        with pytest.raises(UsageError, match=r"E107 .* cannot be combined: .* masks the classes"):
            registry.parse(text)


@dataclass(frozen=True)
class Doubling(Part):
    name: ClassVar[str] = "doubling"

    def logits(self, z, b, c):
        return 2 * z


@pytest.mark.parametrize("own", [FedCP(), FedPCL(), Floco()], ids=lambda part: part.name)
def test_logits_that_a_loss_of_its_own_would_not_see_are_not_changed(own):
    """FedLC beside FedCP trained to the bits of FedCP alone."""
    for other in (Doubling(), FedLC()):
        with pytest.raises(UsageError, match=r"E107 .* its loss is of logits that it makes itself"):
            Method(own, other)


@pytest.mark.parametrize("mixing", ["flea", "feddpms"])
def test_a_prior_of_the_clients_own_labels_does_not_meet_mixtures(mixing):
    """Half of every mixed label is the buffer's, and the loss was corrected by the client's own labels."""
    for prior in ("rebafl(mu=0)", "rebafl", "rebafl(eps=1, form=additive)", "fedrs", "bsm", "fedlc"):
        with pytest.raises(UsageError, match=r"E107 .* cannot be combined: .* the other brings"):
            registry.parse(f"{mixing}+{prior}")
    assert registry.parse(f"{mixing}+faug")  # its prior is uniform whatever a client holds


@pytest.mark.parametrize(
    "text", ["norm+fedrdn", "fedprox+fedprox", "fedprx", "fedprox(nu=1)", "fedprox(mu='a')", "fedprox(mu=0.1"]
)
def test_methods_that_cannot_be_read_or_combined_are_refused(text):
    with pytest.raises(UsageError):
        registry.parse(text)


def test_a_method_prints_as_it_is_written():
    for text in ("fedavg", "fedprox(mu=0.01)+fedrdn", "flea(alpha=0.2)+scaffold+fedbn"):
        assert str(registry.parse(text)) == text
    assert str(registry.parse("FedProx+flea", {"flea": {"alpha": 0.3}})) == "fedprox+flea(alpha=0.3)"
    assert registry.parse("rbsm") == registry.parse("rebafl(mu=0)")
    with pytest.raises(UsageError, match=r"has no argument 'm'"):
        registry.parse("fedprox(m=1)")


def test_fedbn_is_refused_where_there_is_nothing_to_keep():
    """On a model without batch normalisation it was FedAvg to the bit, also in the docs."""
    with pytest.raises(UsageError, match="E108 'fedbn' cannot run here: the model has no batch"):
        resolve(conformance.short_settings(), conformance.small_federation(), registry.parse("fedbn"))
    resolve(
        conformance.short_settings(model="cnn_small(batch_norm=True)"),
        conformance.small_federation(),
        registry.parse("fedbn"),
    )


@pytest.mark.parametrize(
    ("shape", "settings", "why"),
    [
        ((3, 40), {}, "mirror a signal in time"),
        ((1, 4, 9), {}, "up to 4 positions of an axis that has 4"),
        ((1, 9, 5), {"shift": 0, "blank": 5}, "up to 5 positions of an axis that has 5"),
        ((12,), {"flip": 0.0}, r"a sample here is \[12\]"),
    ],
)
def test_augmentation_refuses_samples_that_it_would_spoil(shape, settings, why):
    assert re.search(why, Augment(**settings).refuse(samples_of(shape)) or "")
    assert Augment(flip=0.0).refuse(samples_of((3, 40))) is None


def test_a_direction_is_moved_as_the_inputs_are():
    """FedMix differentiates along it."""
    x = torch.arange(8.0).reshape(2, 1, 2, 2)
    noise = {"mirror": torch.tensor([0.0, 0.9]), "shift": torch.tensor([[1, 2], [1, 1]])}
    moved = Augment(shift=1).batch(batch(x).replace(along=2 * x), client(noise=noise))
    assert_close(moved.x, [[[[0, 0], [2, 0]]], [[[4, 5], [6, 7]]]])
    assert_close(moved.along, 2 * moved.x)
