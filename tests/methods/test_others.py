"""FedAvg, FedProx, Scaffold, FedBN, norm and FedRDN against hand-worked numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.fixtures import assert_close, batch, client, samples_of
from unskew.core.client import Batch
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.replies import Reply, Ups
from unskew.errors import UsageError
from unskew.merge.mean import weighted_mean
from unskew.methods import registry
from unskew.methods.augment import Augment
from unskew.methods.fedprox import FedProx
from unskew.methods.fedrdn import FedRDN
from unskew.methods.norm import Norm
from unskew.methods.scaffold import Scaffold
from unskew.runs import conformance
from unskew.runs.resolve import resolve


def test_fedavg_weighs_by_size():
    replies = [Reply(1, 10.0, {"w": torch.tensor([3.0, -2])}), Reply(0, 30.0, {"w": torch.tensor([1.0, 2])})]
    start = {"w": torch.zeros(2), "kept": torch.ones(1)}
    merged = weighted_mean(start, Ups.of(replies))
    assert_close(merged["w"], [1.5, 1.0])
    assert merged["kept"] is start["kept"]
    assert_close(weighted_mean(start, Ups.of(replies), "equal")["w"], [2.0, 0.0])


def test_fedprox_is_half_mu_times_the_squared_distance():
    w, start = torch.tensor([1.0, 2, -1], requires_grad=True), torch.tensor([0.5, 2, 1])
    fed = SimpleNamespace(shared=("w",))
    loss = FedProx(mu=0.01).loss({"w": w}, None, None, client(start={"w": start}, fed=fed))
    assert_close(loss, 0.02125, 6)
    (g,) = torch.autograd.grad(
        FedProx(mu=0.01).loss(
            {"w": start.requires_grad_()}, None, None, client(start={"w": start.detach()}, fed=fed)
        ),
        start,
    )
    assert g.tolist() == [0, 0, 0]


def scaffold_client(momentum=0.0):
    fed = SimpleNamespace(momentum=momentum, optimiser="sgd", clients=4)
    return client(
        fed=fed,
        start={"w": torch.tensor([1.0, 1])},
        mine={"c": {"w": torch.tensor([0.2, -0.1])}},
        down={"c": {"w": torch.tensor([0.1, 0.0])}},
        steps=torch.tensor(2.0),
        lr=0.1,
    )


def test_scaffold_option_two():
    c = scaffold_client()
    up, mine = Scaffold().finish({"w": torch.tensor([0.8, 1.1])}, c)
    assert_close(mine["c"]["w"], [1.1, -0.6])
    assert_close(up["delta"]["w"], [0.9, -0.5])
    ups = Ups.of([Reply(2, 1.0, {}, {"scaffold": up})]).seen_by("scaffold")
    assert_close(
        Scaffold().server({"c": {"w": torch.tensor([0.1, 0.0])}}, ups, c.fed)["c"]["w"], [0.325, -0.125]
    )
    assert_close(Scaffold().grad({"w": torch.tensor([0.5, 0.5])}, {}, c)["w"], [0.4, 0.6])


def test_scaffold_divides_by_the_accumulated_weight_of_momentum_steps():
    _, mine = Scaffold().finish({"w": torch.tensor([0.8, 1.1])}, scaffold_client(momentum=0.9))
    assert_close(mine["c"]["w"], [0.1 + 0.2 / 0.29, -0.1 - 0.1 / 0.29])  # two steps weigh 1.9 + 1


def test_norm_with_imagenet_constants():
    x = torch.full((1, 3, 1, 1), 0.485)
    found = Norm().evaluate_with(x, client())
    assert_close(found.flatten(), [0.0, (0.485 - 0.456) / 0.224, (0.485 - 0.406) / 0.225])


IMAGES = torch.tensor([[[[0.0, 0.2], [0.4, 0.6]]], [[[0.5, 0.5], [1.0, 1.0]]]])


def statistics(part):
    def total(measure, raw):
        assert raw
        return measure(Batch(IMAGES, torch.zeros(2, 3), torch.ones(2)))

    return part.measure({}, client(total=total))


def test_fedrdn_statistics_are_means_over_images():
    found = statistics(FedRDN())
    assert_close(found["mu"], [0.5250])
    assert_close(found["sigma"], [0.2368])
    assert_close(statistics(FedRDN(variant="official"))["sigma"], [(0.2582 + 0.2887) / 2])
    pixel = FedRDN().evaluate_with(torch.full((1, 1, 1, 1), 0.6), client(id=0, down=down([found])))
    assert_close(pixel.flatten(), [0.3167])


def down(pairs):
    return {
        "mu": torch.stack([p["mu"] for p in pairs]),
        "sigma": torch.stack([p["sigma"] for p in pairs]),
        "row": torch.arange(len(pairs)),
    }


def test_fedrdn_draws_mean_and_std_from_one_client_per_image():
    table = {
        "mu": torch.tensor([[0.0], [1.0]]),
        "sigma": torch.tensor([[1.0], [2.0]]),
        "row": torch.arange(2),
    }
    x = torch.full((2, 1, 1, 1), 5.0)
    b = FedRDN().batch(batch(x), client(down=table, noise={"of_pair": torch.tensor([0, 1])}))
    assert_close(b.x.flatten(), [5.0, 2.0])
    stranger = FedRDN().evaluate_with(x, client(id=-1, down=table))
    assert_close(stranger.flatten(), [(5 - 0.5) / 1.5] * 2)
    assert_close(FedRDN(mean=True).batch(batch(x), client(down=table)).x.flatten(), [3.0, 3.0])


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
    """M4: on a model without batch normalisation it was FedAvg to the bit, also in the first commands of the
    docs."""
    with pytest.raises(
        UsageError, match="E108 'fedbn' cannot run here: the model has no batch normalisation"
    ):
        resolve(conformance.short_settings(), conformance.small_federation(), registry.parse("fedbn"))
    resolve(
        conformance.short_settings(model="cnn_small(batch_norm=True)"),
        conformance.small_federation(),
        registry.parse("fedbn"),
    )


@dataclass(frozen=True)
class KeepsNorms(Part):
    """A stranger's FedBN."""

    name = "keeps_norms"

    def keeps(self, name, fed):
        return name in fed.net.norms


def test_a_part_that_only_holds_back_what_the_model_lacks_is_refused():
    """M4: any Part that keeps normalisation layers was FedAvg on a model without them."""
    with pytest.raises(
        UsageError, match="E108 'keeps_norms' cannot run here: it holds back no weight of this model"
    ):
        resolve(conformance.short_settings(), conformance.small_federation(), Method(KeepsNorms()))
    resolve(
        conformance.short_settings(model="cnn_small(batch_norm=True)"),
        conformance.small_federation(),
        Method(KeepsNorms()),
    )
    assert conformance.settings_for(Method(KeepsNorms())).model == "cnn_small(batch_norm=True)"
    assert conformance.settings_for(Method()).model == "cnn_small"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_no_command_of_the_first_pages_keeps_norms_of_a_model_without_any(page):
    """M4: the default model of the digits has no batch normalisation."""
    lines = (Path(__file__).parents[2] / page).read_text().splitlines()
    assert not [
        line for line in lines if "fedbn" in line and ("digits" in line or line.startswith(("$", "    -")))
    ]


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
