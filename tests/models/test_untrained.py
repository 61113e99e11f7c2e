"""Models of which something would stay as it is, or change, unseen: refused before training (E123)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runs.test_trial import CLASSES, trained
from unskew.errors import UsageError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(36, 8), nn.Linear(8, CLASSES)
        self.made()

    def made(self) -> None:
        """Further layers."""

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(F.relu(self.body(x.flatten(1)))))


class Listed(Model):
    def made(self):
        self.layers = [nn.Linear(8, 8)]

    def between(self, h):
        return self.layers[0](h)


class NoParameter(Model):
    def made(self):
        self.scale = {"of": torch.ones(8, requires_grad=True)}

    def between(self, h):
        return h * self.scale["of"]


class Hooked(Model):
    def made(self):
        self.body.weight.register_hook(lambda g: 0 * g)


class Lazy(Model):
    def made(self):
        self.head = nn.LazyLinear(CLASSES)


class Compiled(Model):
    def made(self):
        self.more = torch.compile(nn.Linear(8, 8))

    def between(self, h):
        return self.more(h)


class Counting(Model):
    def made(self):
        self.register_buffer("mean", torch.zeros(8))

    def between(self, h):
        if not self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * h.mean(0))
        return h - self.mean


class Again(Model):
    def between(self, h):
        return checkpoint(nn.Sequential(self.body, nn.ReLU()), F.pad(h, (0, 28)), use_reentrant=False)


class Auxiliary(Model):
    def forward(self, x):
        z = super().forward(x)
        return (z, z) if self.training else z


class Pair(Model):
    def forward(self, x):
        return {"answer": super().forward(x)}


TOLD = {
    Listed: (
        "it keeps layers with weights in 'layers', which nobody trains, sends or saves; make it"
        " nn.ModuleList, or freeze"
    ),
    NoParameter: "it keeps a tensor that requires gradients in 'scale', .*; make it nn.Parameter",
    Hooked: "'body.weight' has a hook on its gradient",
    Compiled: "'more' is compiled",
    Counting: "it changes its buffer 'mean' in evaluation mode, so that scoring would change the model",
    Again: "the model cannot be trained: ",
    Auxiliary: "in training it returns its answer as tuple, and a round takes logits alone",
    Pair: r"the model gives dict for two samples; .* Return the logits alone\.",
}


@pytest.mark.parametrize("kind", TOLD)
def test_it_is_told_before_anything_trains(kind):
    """Before, the first three trained something else than was written, scores changed the model that kept a
    mean in evaluation, and the rest were told in torch's words or in wrong ones."""
    with pytest.raises(UsageError, match=f"^E123 [^\n]*{TOLD[kind]}"):
        trained(kind(), lanes="1")


def test_lazy_layers_take_their_shapes_from_the_data():
    """Before, the model was said to draw random numbers in evaluation mode."""
    assert trained(Lazy(), lanes="1").model.head.in_features == 8


def test_what_is_frozen_and_known_may_lie_in_a_list():
    class Teacher(Model):
        def made(self):
            self.teacher, self.layers = [nn.Linear(8, 8).requires_grad_(False)], [self.body, self.head]

        def between(self, h):
            return h + 0 * self.teacher[0](h)

    assert trained(Teacher(), lanes="1").digest
