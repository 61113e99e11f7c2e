"""The images that a sample holds, for Parts that work on images: the sample itself, or those among its several inputs.

Letters: B samples of a batch, C the channels of all images of a sample, D numbers of a row of several inputs.
"""

from collections.abc import Iterable

import torch

from unskew.core import Fed, Tensor


def shapes(fed: Fed) -> list[tuple[int, ...]]:
    """[channels, H, W] of each; none where a sample is no image and none of its inputs is one."""
    if fed.net.layout:
        return [each.shape for each, _, _ in fed.net.layout.images]
    return [fed.shape] if len(fed.shape) == 3 else []


def none_in(fed: Fed) -> str:
    """Why a Part that works on images cannot run where there are none, as the end of a sentence."""
    layout = fed.net.layout
    return f"none of a sample's inputs is an image ({layout})" if layout else f"a sample here is {list(fed.shape)}"


def channels(fed: Fed) -> int:
    """C."""
    return sum(shape[0] for shape in shapes(fed))


def images(x: Tensor, fed: Fed) -> list[Tensor]:
    """[B, channels, H, W] each, of samples as they enter the model."""
    if not fed.net.layout:
        return [x]
    return [x[:, a:b].reshape(len(x), *each.shape) for each, a, b in fed.net.layout.images]


def with_images(x: Tensor, changed: Iterable[Tensor], fed: Fed) -> Tensor:
    """The samples with these images, [B, channels, H, W] each, in place of their own."""
    changed = iter(changed)
    if not fed.net.layout:
        return next(changed)
    pieces = (next(changed).flatten(1) if each.is_image else x[:, a:b] for each, a, b in fed.net.layout.places)
    return torch.cat(list(pieces), 1)


def beside(values_BC: Tensor, fed: Fed, elsewhere: float = 0.0) -> Tensor:
    """A number for each channel of each sample, or of all with B = 1, shaped to go with samples.

    elsewhere: the number beside what is in no image.
    """
    if not fed.net.layout:
        return values_BC.reshape(*values_BC.shape, *[1] * (len(fed.shape) - 1))
    of_images = iter(values_BC.split([shape[0] for shape in shapes(fed)], 1))
    rows = [
        next(of_images).repeat_interleave(each.size // each.channels, 1)
        if each.is_image
        else values_BC.new_full((len(values_BC), each.size), elsewhere)
        for each in fed.net.layout.inputs
    ]
    return torch.cat(rows, 1)
