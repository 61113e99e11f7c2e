"""FLea against hand-worked numbers (Eq. 3-5, 8 of the paper) and a naive distance correlation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from unskew.core import Batch, Client, Out, Part, Weights
from unskew.core.method import Method
from unskew.methods.flea import FLea, squared_distance_correlation
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

X4 = torch.tensor([[0.0, 0], [1, 0], [0, 2], [3, 1]])
ONES = torch.ones(4)


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
    """A pass that goes on from a cut must not take the masks of layers before it."""
    model = nn.Sequential()
    for name, width in (("first", 192), ("second", 12), ("third", 20)):
        layers = (nn.Flatten(), nn.Linear(width, {192: 12, 12: 20, 20: 16}[width]), nn.Dropout(0.5))
        model.add_module(name, nn.Sequential(*layers))
    model.add_module("head", nn.Linear(16, 3))
    settings = conformance.short_settings(lanes=lanes, rounds=1)
    run = loop_of(resolve(settings, conformance.small_federation(), Method(SamePass()), model))
    _, summary = run.round(run.begin(), 1)
    assert summary.loss < 10


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_normalisation_after_the_cut_sees_the_batch_the_mixture_and_the_buffer(lanes):
    """The public code passes the buffer's activations in training mode, too.

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
    state = run.begin()
    buffer = {"features": torch.ones(5, 4), "labels": torch.tensor([0, 1, 2, 0, 1])}
    start = run.down(replace(state, slices={**state.slices, "flea": buffer}), 2)
    (reply,) = run.trainer.train(start, [0], {})
    mean = reply.weights["second.0.running_mean"]
    assert bool(((mean > 0.1) & (mean < 0.19)).all()), mean
