"""Models with a layer before their head: what it computes, what is refused, and that the original stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unskew import models
from unskew.core.modules import head_of, with_latent, with_projection
from unskew.errors import UsageError


def test_a_model_that_has_a_latent_stays_itself():
    module = models.build("vae_fmnist", (1, 28, 28), 10)
    assert with_latent(module, 5) is module


class Other(nn.Module):
    """Not a Sequential; its head is named `out`."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.body(x).relu())


def test_in_another_module_the_projection_takes_the_place_of_the_last_dense_layer():
    module = Other()
    changed = with_projection(module, 5)
    assert isinstance(module.out, nn.Linear)
    assert [type(layer) for layer in changed.out] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]
    assert changed(torch.rand(6, 4)).shape == (6, 2)


def test_models_without_a_dense_head_are_refused():
    with pytest.raises(UsageError, match=r"E104 a latent layer needs an nn\.Sequential"):
        with_latent(Other(), 5)
    with pytest.raises(UsageError, match=r"E104 the model's head '1' is not one nn\.Linear"):
        with_projection(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1)), 5)
    changed = with_projection(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), 5)
    assert changed(torch.rand(6, 4)).shape == (6, 2)
    assert [type(layer) for layer in changed[0]] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]
    with pytest.raises(UsageError, match=r"E104 the model has no nn\.Linear"):
        head_of(nn.Sequential(nn.ReLU()))
