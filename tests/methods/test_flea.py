"""FLea against hand-worked numbers (Eq. 3-5, 8 of the paper) and a naive distance correlation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.fixtures import G, Z, assert_close, batch, onehot
from unskew.core import Batch, Client, Out, Part, Weights
from unskew.core.method import Method
from unskew.errors import UsageError
from unskew.methods.flea import FLea, kl, mix, squared_distance_correlation
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve
from unskew.tasks.task import Classification

X4 = torch.tensor([[0.0, 0], [1, 0], [0, 2], [3, 1]])
F4 = torch.tensor([[0.0], [1], [4], [2]])
ONES = torch.ones(4)


def test_mixing_uses_one_weight_a_sample_for_activation_and_label():
    f, fF = torch.tensor([[1.0, 2], [3, -1]]), torch.tensor([[0.0, 0], [1, 1]])
    ft, b = mix(f, batch(), fF, onehot([2, 2]), torch.tensor([0.25, 0.7]))
    assert_close(ft, [[0.25, 0.5], [2.4, -0.4]])
    assert_close(b.y, [[0.25, 0, 0.75], [0, 0.7, 0.3]])
    losses = Classification().loss(Z, b.y)
    assert_close(losses, [2.4913, 0.8303])
    assert_close(b.mean(losses), 1.6608)


def test_kl_in_both_directions():
    assert_close(kl(Z, G), [0.2795, 0.5786])
    assert_close(kl(G, Z), [0.3235, 0.4606])


def test_decorrelation_is_the_squared_distance_correlation():
    assert_close(squared_distance_correlation(X4, F4, ONES), 0.7698)
    assert_close(squared_distance_correlation(X4, F4, ONES).sqrt(), 0.8774)
    assert_close(1.6608 + 0.4291 + 3 * squared_distance_correlation(X4, F4, ONES), 4.3993, 3)


def naive(x: torch.Tensor, f: torch.Tensor) -> float:
    """Distance covariance from its definition, loops and all."""
    n = len(x)
    sides = []
    for v in (x.flatten(1), f.flatten(1)):
        d = [[float((v[i] - v[j]).norm()) for j in range(n)] for i in range(n)]
        row = [sum(r) / n for r in d]
        sides.append([[d[i][j] - row[i] - row[j] + sum(row) / n for j in range(n)] for i in range(n)])
    dot = lambda a, b: sum(a[i][j] * b[i][j] for i in range(n) for j in range(n)) / n**2  # noqa: E731
    return dot(*sides) / (dot(sides[0], sides[0]) * dot(sides[1], sides[1])) ** 0.5


def test_decorrelation_equals_the_definition_and_ignores_padding():
    g = torch.Generator().manual_seed(3)
    x, f = torch.randn(9, 3, 4, generator=g), torch.randn(9, 5, generator=g)
    expected = naive(x[:7], f[:7])
    weight = torch.tensor([1.0] * 7 + [0.0] * 2)
    assert squared_distance_correlation(x, f, weight).item() == pytest.approx(expected, abs=1e-5)
    assert squared_distance_correlation(x[:7], f[:7], torch.ones(7)).item() == pytest.approx(
        expected, abs=1e-5
    )


@pytest.mark.parametrize(
    ("x", "f", "expected"),
    [
        ([0.0, 1, 2, 5], [1.0, 4, 7, 16], 1.0),  # f = 3x + 1
        ([0.0, 0, 1, 1], [0.0, 1, 0, 1], 0.0),  # independent
        ([0.0, 1, 2, 3], [2.0, 2, 2, 2], 0.0),  # 0/0
        ([0.0, 1], [3.0, 1], 0.0),  # two samples: constantly 1 and of no use
    ],
)
def test_decorrelation_at_its_edges(x, f, expected):
    x, f = torch.tensor(x)[:, None], torch.tensor(f)[:, None].requires_grad_()
    found = squared_distance_correlation(x, f, torch.ones(len(x)))
    assert found.item() == pytest.approx(expected, abs=1e-5)
    assert torch.isfinite(torch.autograd.grad(found, f, allow_unused=True)[0]).all()


def test_duplicates_have_a_finite_gradient():
    f = torch.tensor([[1.0], [1.0], [2.0], [4.0]], requires_grad=True)
    assert torch.isfinite(torch.autograd.grad(squared_distance_correlation(X4, f, ONES), f)[0]).all()


def test_arguments_are_checked():
    with pytest.raises(UsageError, match="variant"):
        FLea(variant="paperr")
    with pytest.raises(UsageError, match="alpha"):
        FLea(alpha=1.5)


@dataclass(frozen=True)
class SamePass(Part):
    """Goes on from a cut in training mode, with what the step's own pass had there."""

    name: ClassVar[str] = "same_pass"
    taps: ClassVar[tuple[str, ...]] = ("second",)  # type: ignore[assignment]

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        again = c.run_training(w, out.after["second"], since="second")
        whole = c.run_training(w, b.x)
        apart = (again - out.logits).abs().sum() + (whole - out.logits).abs().sum()
        return torch.where(apart > 1e-4, torch.inf, 0.0)


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_a_further_pass_drops_out_the_same_units(lanes):
    """M20: a pass that goes on from a cut must not take the masks of layers before it."""
    model = nn.Sequential()
    for name, width in (("first", 192), ("second", 12), ("third", 20)):
        layers = (nn.Flatten(), nn.Linear(width, {192: 12, 12: 20, 20: 16}[width]), nn.Dropout(0.5))
        model.add_module(name, nn.Sequential(*layers))
    model.add_module("head", nn.Linear(16, 3))
    settings = conformance.short_settings(lanes=lanes, rounds=1)
    run = loop_of(resolve(settings, conformance.small_federation(), Method(SamePass()), model))
    try:
        _, summary = run.round(run.begin(), 1)
    finally:
        run.trainer.close()
    assert summary.loss < 10


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_normalisation_after_the_cut_sees_the_batch_the_mixture_and_the_buffer(lanes):
    """M20: the public code passes the buffer's activations in training mode, too.

    All activations of the client are 0 and all of the buffer's 1, so that the running mean after one step is
    0.9 * 0.1 * (1 - beta) + 0.1, where beta is the mean of the mixing weights.
    """
    model = nn.Sequential()
    model.add_module("first", nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))
    model.add_module("second", nn.Sequential(nn.BatchNorm1d(4)))
    model.add_module("head", nn.Linear(4, 3))
    for p in model.first.parameters():
        nn.init.zeros_(p)
    settings = conformance.short_settings(lanes=lanes, batch=64, epochs=1)
    run = loop_of(resolve(settings, conformance.small_federation(), Method(FLea(variant="official")), model))
    try:
        state = run.begin()
        buffer = {"features": torch.ones(5, 4), "labels": torch.tensor([0, 1, 2, 0, 1])}
        start = run.down(replace(state, slices={**state.slices, "flea": buffer}), 2)
        (reply,) = run.trainer.train(start, [0], {})
    finally:
        run.trainer.close()
    mean = reply.weights["second.0.running_mean"]
    assert bool(((mean > 0.1) & (mean < 0.19)).all()), mean


def test_the_public_codes_step_needs_blocks_where_it_normalises():
    """M20: going on from a cut of any other module would normalise zeros on the way there."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
            self.head = nn.Linear(144, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    for variant in ("paper", "official"):
        method = Method(FLea(variant=variant))
        if variant == "paper":
            resolve(conformance.short_settings(), conformance.small_federation(), method, Whole())
            continue
        with pytest.raises(UsageError, match=r"must be an nn\.Sequential"):
            resolve(conformance.short_settings(), conformance.small_federation(), method, Whole())
