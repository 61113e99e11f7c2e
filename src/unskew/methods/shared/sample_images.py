"""Images among a sample's inputs, and a decoder from latents to images.

A sample is one image or has several inputs, some of which are images. The decoder (of FedDPMS) has a dense
layer and four transposed convolutions:

    h = ReLU(W z + b), [64, H/4, W/4];   h = ReLU(convT(h)) three times;   x = sigmoid(convT(h))

Letters: B samples of a batch, C channels of all images of a sample, D numbers of a row of several
         inputs, L coordinates of a latent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.core import Fed, Weights


def image_shapes(fed: Fed) -> list[tuple[int, ...]]:
    """The shape [channels, H, W] of each image of a sample; empty if there is none."""
    if fed.net.layout:
        return [each.shape for each, _, _ in fed.net.layout.images]
    return [fed.shape] if len(fed.shape) == 3 else []


def image_refusal(fed: Fed) -> str:
    """The reason why a Part that works on images cannot run without any, as the end of a sentence."""
    layout = fed.net.layout
    if layout:
        return f"none of a sample's inputs is an image ({layout})"
    return f"a sample here is {list(fed.shape)}"


def image_channels(fed: Fed) -> int:
    """The number C of channels of all images."""
    return sum(shape[0] for shape in image_shapes(fed))


def images(x: Tensor, fed: Fed) -> list[Tensor]:
    """The images of samples as they enter the model, [B, channels, H, W] each."""
    if not fed.net.layout:
        return [x]
    return [x[:, a:b].reshape(len(x), *each.shape) for each, a, b in fed.net.layout.images]


def with_images(x: Tensor, changed: Iterable[Tensor], fed: Fed) -> Tensor:
    """The samples with their images replaced by these, [B, channels, H, W] each."""
    changed = iter(changed)
    if not fed.net.layout:
        return next(changed)
    pieces = (
        next(changed).flatten(1) if each.is_image else x[:, a:b] for each, a, b in fed.net.layout.places
    )
    return torch.cat(list(pieces), 1)


def per_channel(values_BC: Tensor, fed: Fed, elsewhere: float = 0.0) -> Tensor:
    """One number for each channel of each sample, or of all samples if B = 1, shaped to broadcast against
    samples.

    elsewhere: the number for inputs that are not images.
    """
    if not fed.net.layout:
        return values_BC.reshape(*values_BC.shape, *[1] * (len(fed.shape) - 1))
    of_images = iter(values_BC.split([shape[0] for shape in image_shapes(fed)], 1))
    rows = [
        next(of_images).repeat_interleave(each.size // each.channels, 1)
        if each.is_image
        else values_BC.new_full((len(values_BC), each.size), elsewhere)
        for each in fed.net.layout.inputs
    ]
    return torch.cat(rows, 1)


def drawing_refusal(fed: Fed, what: str) -> str | None:
    """The reason why the decoder cannot draw such samples, as the end of a sentence; None if it can. what: of
    the Part, "its decoder"."""
    shape = fed.shape
    if len(shape) == 3 and not shape[1] % 4 and not shape[2] % 4:
        return None
    return f"{what} draws images whose sides are multiples of 4 and a sample here is {list(shape)}"


def last_of_stage(share: float, rounds: int) -> int:
    """The last round T_p of a first stage of this share of the rounds: at least 1 and, with two rounds or
    more, below the last round."""
    return max(1, min(rounds - 1, round(share * rounds)))


DECODER_LAYERS = (("a", 64, 64, 1), ("b", 64, 32, 2), ("c", 32, 32, 1), ("d", 32, 0, 2))
"""The transposed convolutions: name, channels in and out (0: the data's), stride."""


def initial_decoder(shape: tuple[int, ...], width: int, generator: torch.Generator) -> Weights:
    """Initial weights, named `dec_...`, of a decoder from `width` coordinates to images of this shape."""
    low = (shape[1] // 4) * (shape[2] // 4) * 64
    weights = {
        "dec_w": uniform_weights(low, width, fan=width, generator=generator),
        "dec_b": torch.zeros(low),
    }
    for layer, i, o, _ in DECODER_LAYERS:
        weights[f"dec_{layer}_w"] = uniform_weights(i, o or shape[0], 3, 3, fan=9 * i, generator=generator)
        weights[f"dec_{layer}_b"] = torch.zeros(o or shape[0])
    return weights


def uniform_weights(*shape: int, fan: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers with mean 0 and variance 1 / fan."""
    return (2 * torch.rand(shape, generator=generator) - 1) * (3 / fan) ** 0.5


def decode(P: Mapping[str, Tensor], z_BL: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images [B, *shape] in [0, 1] from latents. P: the decoder's weights, named `dec_...`."""
    h = F.linear(z_BL, P["dec_w"], P["dec_b"]).relu().unflatten(1, (64, shape[1] // 4, shape[2] // 4))
    for name, _, out, stride in DECODER_LAYERS:
        h = F.conv_transpose2d(h, P[f"dec_{name}_w"], P[f"dec_{name}_b"], stride, 1, stride - 1)
        h = h.relu() if out else h.sigmoid()
    return h
