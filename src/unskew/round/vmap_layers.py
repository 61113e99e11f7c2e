"""Layers over many clients at once: convolution, pooling and normalisation, with their rules for
`torch.func.vmap`.

Under vmap an activation of G clients is one tensor. On a CPU it is stored as [B, G, C, H, W] in channels-last
memory, and a convolution sees it folded along the channels, as [B, G*C, H, W] with G groups, which is far
faster than one client after another. On a GPU it is stored as [G, C, B, H, W], and a convolution is a batched
product of weights and windows: cuDNN runs the groups of a grouped convolution one after another, or by
kernels for depthwise layers, which takes 1.5 to 6 times as long in float32. Depthwise layers themselves
remain grouped. Letters: B batch, G lanes, C channels in, O channels out, H x W pixels in, h x v pixels out, i
x j pixels of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.round.precision import is_tf32

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    """A convolution layer without its weights. run: the layer as a function of (x, w, bias, groups), folded
    lanes or not.

    stride, padding, dilation: by axis; None if the layer is transposed or pads "same", which is never
    batched.
    """

    run: Callable[[Tensor, Tensor, Tensor | None, int], Tensor]
    stride: Pair | None = None
    padding: Pair | None = None
    dilation: Pair | None = None

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return self.run(x, w, bias, groups)

    def is_batched(self, x: Tensor, w_GOCij: Tensor, groups: int) -> bool:
        """Whether `batched` supports this layer for inputs x [..., H, W], and is faster than `run` on folded
        lanes."""
        C, i, j = w_GOCij.shape[2:]
        if self.stride is None or (groups > 1 and C == 1):
            return False
        large = i * j >= 9 and C >= 32 and x.shape[-2] * x.shape[-1] >= 64 * self.stride[0] * self.stride[1]
        return not (large and is_tf32())  # cuDNN's grouped kernels for TF32 are fast there

    def batched(self, x_GCBHW: Tensor, w_GOCij: Tensor, bias_GO: Tensor | None, groups: int) -> Tensor:
        """[G, O, B, h, v] from inputs and weights of every lane."""
        assert self.stride is not None
        assert self.padding is not None
        assert self.dilation is not None
        G, O = w_GOCij.shape[:2]
        x = x_GCBHW.unflatten(1, (groups, -1)).flatten(0, 1) if groups > 1 else x_GCBHW
        w = w_GOCij.unflatten(1, (groups, -1)).flatten(0, 1) if groups > 1 else w_GOCij
        y = BatchedConvolution.apply(x, w, self.stride, self.padding, self.dilation)
        y = y.view(G, O, *y.shape[2:])  # type: ignore[union-attr]
        return y if bias_GO is None else y + bias_GO[:, :, None, None, None]


def pair(values: int | tuple[int, ...] | list[int]) -> Pair:
    """A layer's setting for both axes, from one number or two."""
    return (values, values) if isinstance(values, int) else (values[0], values[-1])


def single(values: int | tuple[int, ...] | list[int]) -> int:
    """A layer's setting for its single axis."""
    return values if isinstance(values, int) else values[0]


class BatchedConvolution(torch.autograd.Function):
    """y = w * x for every lane: x [G, C, B, H, W], w [G, O, C, i, j] -> [G, O, B, h, v].

    The windows are copied out once, as [G, C*i*j, B*h*v], and kept for the weights' gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        ctx.windows = Windows(tuple(x.shape), tuple(w.shape[3:]), stride, padding, dilation)  # type: ignore[arg-type]
        columns = ctx.windows.of(x)
        ctx.save_for_backward(columns, w)
        return torch.bmm(w.flatten(2), columns).view(len(w), w.shape[1], x.shape[2], *ctx.windows.out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        columns, w = ctx.saved_tensors
        g = gradients[0].reshape(len(w), w.shape[1], -1)
        g_w = torch.bmm(g, columns.mT).view_as(w) if ctx.needs_input_grad[1] else None
        g_x = ctx.windows.added(torch.bmm(w.flatten(2).mT, g)) if ctx.needs_input_grad[0] else None
        return g_x, g_w, None, None, None


@dataclass(frozen=True)
class Windows:
    """The windows that a kernel sees in inputs of this shape, [G, C, B, H, W]."""

    shape: tuple[int, int, int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def out(self) -> Pair:
        """(h, v), the size of the output."""
        h, v = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(self.shape[3:], self.kernel, self.stride, self.padding, self.dilation)
        )
        return h, v

    @property
    def is_whole(self) -> bool:
        """Whether every window is one pixel and every pixel a window, so that no copy is needed."""
        return self.kernel == (1, 1) == self.stride and self.padding == (0, 0)

    def of(self, x: Tensor) -> Tensor:
        """The windows of x as columns, [G, C*i*j, B*h*v]."""
        G, C, B = self.shape[:3]
        if self.is_whole:
            return x.reshape(G, C, -1)
        if self.padding != (0, 0):
            x = F.pad(x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0]))
        for axis, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation)):
            x = x.unfold(3 + axis, d * (k - 1) + 1, s)[..., ::d]
        i, j = self.kernel
        return x.permute(0, 1, 5, 6, 2, 3, 4).reshape(G, C * i * j, B * self.out[0] * self.out[1])

    def added(self, columns: Tensor) -> Tensor:
        """[G, C, B, H, W]: at every pixel the sum over its entries in the windows. The adjoint of `of`."""
        G, C, B, H, W = self.shape
        if self.is_whole:
            return columns.view(self.shape)
        (i, j), (h, v) = self.kernel, self.out
        windows = columns.view(G, C, i, j, B, h, v)
        total = columns.new_zeros(G, C, B, H + 2 * self.padding[0], W + 2 * self.padding[1])
        for a in range(i):
            for b in range(j):
                top, left = a * self.dilation[0], b * self.dilation[1]
                rows = slice(top, top + (h - 1) * self.stride[0] + 1, self.stride[0])
                columns_ = slice(left, left + (v - 1) * self.stride[1] + 1, self.stride[1])
                total[..., rows, columns_] += windows[:, :, a, b]
        return total[..., self.padding[0] : self.padding[0] + H, self.padding[1] : self.padding[1] + W]


Dims = tuple[int | None, ...]
"""For each argument, the axis of its lanes; None for an argument that all lanes share."""


class VmapFunction(torch.autograd.Function):
    """A function with a rule for vmap as its only purpose; autograd differentiates the operations that the
    rule calls."""

    generate_vmap_rule = False

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("gradients inside vmap are not supported here; train with lanes=1")


class FoldedConvolution(VmapFunction):
    """run(x, w, bias, groups): a convolution or a transposed one. Both have their groups on the first axis of
    w."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, groups: int, run: Convolution) -> Tensor:
        return run(x, w, bias, groups)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
        G, (x, w, bias, groups, run), (at_x, at_w, at_bias, *_) = info.batch_size, args, in_dims
        if at_w is None:  # all lanes share their weights (a frozen teacher), so they join the batch
            assert at_x is not None
            return run(x.movedim(at_x, 0).flatten(0, 1), w, bias, groups).unflatten(0, (G, -1)), 0
        if at_x is None:
            x, at_x = x.unsqueeze(1).expand(-1, G, *x.shape[1:]), 1
        w = w.movedim(at_w, 0)
        if bias is not None:
            bias = bias.expand(G, -1) if at_bias is None else bias.movedim(at_bias, 0)
        if not is_folded(x) and run.is_batched(x, w, groups):
            return run.batched(lanes_first(x, at_x), w, bias, groups).transpose(1, 2), 0
        bias = None if bias is None else bias.flatten(0, 1)
        return run(fold(x, at_x), w.flatten(0, 1), bias, groups * G).unflatten(1, (G, -1)), 1


class FoldedPool(VmapFunction):
    """pool(x): any pooling of [B, C, H, W]."""

    @staticmethod
    def forward(x: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
        return pool(x)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
        (x, pool), at_x = args, in_dims[0]
        assert at_x is not None
        if not is_folded(x):
            return (
                pool(lanes_first(x, at_x).flatten(0, 1)).unflatten(0, (info.batch_size, -1)).transpose(1, 2),
                0,
            )
        return pool(fold(x, at_x)).unflatten(1, (info.batch_size, -1)), 1


class FoldedNorm(VmapFunction):
    """Batch normalisation with each lane's own batch; running statistics are updated in place, as in
    torch."""

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
            t if t is None or lanes is None else t.movedim(lanes, 0).flatten()
            for t, lanes in zip(per_channel, at)
        )
        if not is_folded(x):
            x = lanes_first(x, at_x)
            y = F.batch_norm(x.reshape(1, len(x) * x.shape[1], -1), mean, var, w, b, True, momentum, eps)
            return y.view(x.shape).transpose(1, 2), 0
        y = F.batch_norm(fold(x, at_x), mean, var, w, b, True, momentum, eps)
        return y.unflatten(1, (info.batch_size, -1)), 1


class FoldedGroupNorm(VmapFunction):
    """Normalisation of each sample's groups of channels; the groups of all lanes are concatenated."""

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
    """[.., G, ..] with its lanes at axis `lanes` -> [B, G*C, H, W]; a view for memory in the order [B, H, W,
    G, C]."""
    return x.movedim(lanes, 1).flatten(1, 2)


def is_folded(x: Tensor) -> bool:
    """Whether layers fold their lanes. On a GPU, and for shapes alone (device "meta"), they are batched."""
    return x.device.type == "cpu"


def lanes_first(x: Tensor, lanes: int) -> Tensor:
    """[.., G, ..] with its lanes at axis `lanes` -> [G, C, B, ...]; a view."""
    return x.movedim(lanes, 0).transpose(1, 2)


def affine(x: Tensor, mean: Tensor, scale: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    """(x - mean) * scale * w + b, with one value per channel (axis 1 of x)."""
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
    """Batch normalisation over the samples of weight 1. running: (mean, variance) to update in place, or
    None.

    It works on [C, B*H*W], where every sum runs along contiguous memory. Such sums have equal bits for any
    number of lanes, unlike sums over a folded tensor.
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
