"""FedDPMS's decoder: a dense layer and four transposed convolutions, from a latent to an image.

    h = ReLU(W z + b), [64, H/4, W/4];   h = ReLU(convT(h)) three times;   x = sigmoid(convT(h))
Letters: B batch, L coordinates of a latent.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.core import Weights

LAYERS = (("a", 64, 64, 1), ("b", 64, 32, 2), ("c", 32, 32, 1), ("d", 32, 0, 2))
"""The transposed convolutions: name, channels in and out (0: the data's), stride."""


def initial(shape: tuple[int, ...], width: int, generator: torch.Generator) -> Weights:
    """Initial weights, named `dec_...`, of a decoder from `width` coordinates to images of this shape."""
    low = (shape[1] // 4) * (shape[2] // 4) * 64
    weights = {"dec_w": uniform(low, width, fan=width, generator=generator), "dec_b": torch.zeros(low)}
    for layer, i, o, _ in LAYERS:
        weights[f"dec_{layer}_w"] = uniform(i, o or shape[0], 3, 3, fan=9 * i, generator=generator)
        weights[f"dec_{layer}_b"] = torch.zeros(o or shape[0])
    return weights


def uniform(*shape: int, fan: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers of variance 1 / fan."""
    return (2 * torch.rand(shape, generator=generator) - 1) * (3 / fan) ** 0.5


def decode(P: Mapping[str, Tensor], z_BL: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images [B, *shape] in [0, 1] from latents; P: the decoder's weights, named `dec_...`."""
    h = F.linear(z_BL, P["dec_w"], P["dec_b"]).relu().unflatten(1, (64, shape[1] // 4, shape[2] // 4))
    for name, _, out, stride in LAYERS:
        h = F.conv_transpose2d(h, P[f"dec_{name}_w"], P[f"dec_{name}_b"], stride, 1, stride - 1)
        h = h.relu() if out else h.sigmoid()
    return h
