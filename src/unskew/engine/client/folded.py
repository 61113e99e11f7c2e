"""Layers over many clients at once: convolution, pooling and batch normalisation.

Under `torch.func.vmap` an activation of G clients is one tensor. On a CPU it is kept as [B, G, C, H, W] in channels-last
memory, and a convolution sees it folded along the channels, as [B, G*C, H, W] with G groups, which is far faster than one
client after another. On a GPU, where grouped convolutions are slow, it is kept as [G, C, B, H, W], see `batched`.
Letters: B batch, G lanes, C channels, H, W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.engine.client.batched import Convolution

Dims = tuple[int | None, ...]
"""For each argument, the axis at which its lanes lie; None for an argument that all lanes have in common."""


class Folded(torch.autograd.Function):
    """A function whose only purpose is its rule for vmap; autograd runs through what the rule calls."""

    generate_vmap_rule = False

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("gradients inside vmap are not supported here; train with lanes=1")


class FoldedConvolution(Folded):
    """run(x, w, bias, groups): a convolution or a transposed one. Both have their groups on the first axis of w."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, groups: int, run: Convolution) -> Tensor:
        return run(x, w, bias, groups)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
        G, (x, w, bias, groups, run), (at_x, at_w, at_bias, *_) = info.batch_size, args, in_dims
        if at_w is None:  # all lanes have the same weights (a frozen teacher's), so they join the batch
            assert at_x is not None
            return run(x.movedim(at_x, 0).flatten(0, 1), w, bias, groups).unflatten(0, (G, -1)), 0
        if at_x is None:
            x, at_x = x.unsqueeze(1).expand(-1, G, *x.shape[1:]), 1
        w = w.movedim(at_w, 0)
        if bias is not None:
            bias = bias.expand(G, -1) if at_bias is None else bias.movedim(at_bias, 0)
        if not on_cpu(x) and run.is_batched(x, w, groups):
            return run.batched(lanes_first(x, at_x), w, bias, groups).transpose(1, 2), 0
        bias = None if bias is None else bias.flatten(0, 1)
        return run(fold(x, at_x), w.flatten(0, 1), bias, groups * G).unflatten(1, (G, -1)), 1


class FoldedPool(Folded):
    """pool(x): any pooling of [B, C, H, W]."""

    @staticmethod
    def forward(x: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
        return pool(x)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
        (x, pool), at_x = args, in_dims[0]
        assert at_x is not None
        if not on_cpu(x):
            return pool(lanes_first(x, at_x).flatten(0, 1)).unflatten(0, (info.batch_size, -1)).transpose(1, 2), 0
        return pool(fold(x, at_x)).unflatten(1, (info.batch_size, -1)), 1


class FoldedNorm(Folded):
    """Batch normalisation by each lane's own batch; running statistics are updated in place, as torch does."""

    @staticmethod
    def forward(
        x: Tensor, mean: Tensor, var: Tensor, w: Tensor | None, b: Tensor | None, momentum: float, eps: float
    ) -> Tensor:
        return F.batch_norm(x, mean, var, w, b, True, momentum, eps)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
        x, *per_channel, momentum, eps = args
        at_x, *at = in_dims[:5]
        assert at_x is not None
        mean, var, w, b = (
            t if t is None or lanes is None else t.movedim(lanes, 0).flatten() for t, lanes in zip(per_channel, at)
        )
        if not on_cpu(x):
            x = lanes_first(x, at_x)
            y = F.batch_norm(x.reshape(1, len(x) * x.shape[1], -1), mean, var, w, b, True, momentum, eps)
            return y.view(x.shape).transpose(1, 2), 0
        y = F.batch_norm(fold(x, at_x), mean, var, w, b, True, momentum, eps)
        return y.unflatten(1, (info.batch_size, -1)), 1


class FoldedGroupNorm(Folded):
    """Normalisation of each sample's groups of channels; a lane's groups lie beside those of the lanes before it."""

    @staticmethod
    def forward(x: Tensor, groups: int, w: Tensor | None, b: Tensor | None, eps: float) -> Tensor:
        return F.group_norm(x, groups, w, b, eps)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
        G, (x, groups, w, b, eps), (at_x, _, at_w, at_b, _) = info.batch_size, args, in_dims
        if at_x is None:
            x, at_x = x.unsqueeze(1).expand(-1, G, *x.shape[1:]), 1
        w, b = (
            t if t is None else (t.expand(G, -1) if lanes is None else t.movedim(lanes, 0)).flatten()
            for t, lanes in ((w, at_w), (b, at_b))
        )
        return F.group_norm(fold(x, at_x), groups * G, w, b, eps).unflatten(1, (G, -1)), 1


def fold(x: Tensor, lanes: int) -> Tensor:
    """[.., G, ..] with its lanes at axis `lanes` -> [B, G*C, H, W]; a view where memory is [B, H, W, G, C]."""
    return x.movedim(lanes, 1).flatten(1, 2)


def on_cpu(x: Tensor) -> bool:
    """Whether layers fold; on a GPU, and where shapes alone are computed ("meta"), they are batched."""
    return x.device.type == "cpu"


def lanes_first(x: Tensor, lanes: int) -> Tensor:
    """[.., G, ..] with its lanes at axis `lanes` -> [G, C, B, ...]; a view."""
    return x.movedim(lanes, 0).transpose(1, 2)


def affine(x: Tensor, mean: Tensor, scale: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    """(x - mean) * scale * w + b, with one value a channel (axis 1 of x)."""
    scale = scale if w is None else scale * w
    shift = -mean * scale if b is None else b - mean * scale
    shape = (-1, *[1] * (x.dim() - 2))
    return x * scale.reshape(shape) + shift.reshape(shape)


def masked_norm(
    x: Tensor,
    weight_B: Tensor,
    running: tuple[Tensor, Tensor] | None,
    w: Tensor | None,
    b: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch normalisation over the samples of weight 1; running: (mean, variance) to be updated in place, or None.

    It works on [C, B*H*W], where every sum runs along contiguous memory: such sums have the same bits for any number of
    lanes, which sums over a folded tensor have not.
    """
    B = x.shape[0]
    rows = x.transpose(0, 1).flatten(1).contiguous()
    weight = weight_B.repeat_interleave(rows.shape[1] // B)
    count = weight.sum().clamp(min=1)
    batch_mean = (rows * weight).sum(1) / count
    centred = (rows - batch_mean[:, None]) * weight
    batch_var = centred.pow(2).sum(1) / count
    if running:
        with torch.no_grad():
            unbiased = batch_var * (count / (count - 1).clamp(min=1))
            running[0].mul_(1 - momentum).add_(momentum * batch_mean)
            running[1].mul_(1 - momentum).add_(momentum * unbiased)
    scale = (batch_var + eps).rsqrt()
    y = centred * (scale if w is None else scale * w)[:, None]
    if b is not None:
        y = y + b[:, None]
    return y.unflatten(1, (B, *x.shape[2:])).transpose(0, 1)
