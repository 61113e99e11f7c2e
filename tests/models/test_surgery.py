"""Models with a layer before their head: what the new layers compute, what is refused, and that the original
stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unskew import models
from unskew.core.keys import key
from unskew.core.modules import head_of, with_latent, with_projection
from unskew.errors import UsageError


def plain(bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=bias))


def names(module):
    return [name for name, _ in module.named_children()]


def test_a_latent_is_the_sigmoid_of_a_dense_layer():
    module = plain()
    changed = with_latent(module, 5)
    assert names(module) == ["0", "1", "2", "3"]
    assert names(changed) == ["0", "1", "2", "base", "latent", "3"]
    h = torch.rand(6, 3, generator=key("h"))
    dense = changed.latent[0]
    torch.testing.assert_close(changed.latent(h), 1 / (1 + torch.exp(-(h @ dense.weight.T + dense.bias))))
    assert changed(torch.rand(6, 4, generator=key("x"))).shape == (6, 2)


def test_a_model_that_has_a_latent_stays_itself():
    module = models.build("vae_fmnist", (1, 28, 28), 10)
    assert with_latent(module, 5) is module


def test_a_projection_of_two_dense_layers_stands_before_the_head():
    module = plain()
    changed = with_projection(module, 5)
    assert names(module) == ["0", "1", "2", "3"]
    assert names(changed) == ["0", "1", "2", "projection", "3"]
    first, _, second = changed.projection
    h = torch.rand(6, 3, generator=key("h"))
    expected = torch.relu(h @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(changed.projection(h), expected)
    assert changed[-1].in_features == 5


@pytest.mark.parametrize("bias", [True, False])
def test_the_head_keeps_its_classes_and_whether_it_has_a_bias(bias):
    head = with_projection(plain(bias), 5)[-1]
    assert head.out_features == 2
    assert (head.bias is not None) is bias


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
