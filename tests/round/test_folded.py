"""Layers over many clients at once, and layers that leave out padding, do what torch's layers do for each
client alone."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from unskew.round.vmap_layers import FoldedGroupNorm, FoldedNorm, affine, masked_norm


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))


X = random(5, 4, 3, 3) * 2 + 1
W, B = random(4), random(4) + 3


@pytest.mark.parametrize(("w", "b"), [*itertools.product((None, W), (None, B))])
def test_running_statistics_scale_and_shift_as_in_torch(w, b):
    mean, var = random(4), random(4).abs() + 0.5
    ours = affine(X, mean, (var + 1e-5).rsqrt(), w, b)
    torch.testing.assert_close(ours, F.batch_norm(X, mean, var, w, b, False, 0.1, 1e-5))


@pytest.mark.parametrize(("w", "b"), [*itertools.product((None, W), (None, B))])
def test_padding_changes_nothing_of_the_others(w, b):
    """Neither the answer for the samples of weight 1 nor the running statistics that they leave."""
    weight = torch.tensor([1.0, 1, 1, 0, 0])
    ours, theirs = ([torch.full((4,), 0.5), torch.full((4,), 2.0)] for _ in range(2))
    y = masked_norm(X, weight, (ours[0], ours[1]), w, b, 0.25, 1e-5)
    z = F.batch_norm(X[:3], *theirs, w, b, True, 0.25, 1e-5)
    torch.testing.assert_close(y[:3], z)
    torch.testing.assert_close(ours, theirs)
    assert masked_norm(X, weight, None, w, b, 0.25, 1e-5).equal(y)


@pytest.mark.parametrize("shared", [False, True])
def test_groups_of_channels_are_each_lanes_own(shared):
    """shared: all lanes have one scale and shift."""
    x, w, b = (
        random(3, 5, 4, 2, 2) * torch.tensor([1.0, 9, 0.1]).reshape(3, 1, 1, 1, 1),
        random(3, 4),
        random(3, 4) + 1,
    )
    w, b, at = (w[0], b[0], None) if shared else (w, b, 0)
    ours = vmap(lambda x, w, b: FoldedGroupNorm.apply(x, 2, w, b, 1e-5), in_dims=(0, at, at))(x, w, b)
    for g in range(3):
        torch.testing.assert_close(
            ours[g], F.group_norm(x[g], 2, *((w, b) if shared else (w[g], b[g])), 1e-5)
        )


def test_batches_are_normalised_lane_by_lane():
    x = random(3, 5, 4, 2, 2) * torch.tensor([1.0, 9, 0.1]).reshape(3, 1, 1, 1, 1)
    w, b, mean, var = random(3, 4), random(3, 4), torch.zeros(3, 4), torch.ones(3, 4)
    kept = mean.clone(), var.clone()
    ours = vmap(lambda x, m, v, w, b: FoldedNorm.apply(x, m, v, w, b, 0.1, 1e-5))(x, mean, var, w, b)
    for g in range(3):
        theirs = F.batch_norm(x[g], kept[0][g], kept[1][g], w[g], b[g], True, 0.1, 1e-5)
        torch.testing.assert_close(ours[g], theirs)
        torch.testing.assert_close(mean[g], kept[0][g])
        torch.testing.assert_close(var[g], kept[1][g])
