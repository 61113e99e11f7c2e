"""Convolutions of many clients on a GPU, as batched products of their weights and the windows that these see.

A grouped convolution, the form that suits a CPU, takes 1.5 to 6 times as long on a GPU in float32: cuDNN runs its groups one
after another, or by kernels made for depthwise layers. Depthwise layers themselves stay grouped.
Letters: B batch, G lanes, C channels in, O channels out, H x W pixels in, h x v pixels out, i x j of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.engine.precision import rounds_to_tf32

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    """A convolution layer without its weights. run: the same as a function of (x, w, bias, groups), folded lanes or not.

    stride, padding, dilation: by axis; None where the layer is transposed or pads "same", which is never batched.
    """

    run: Callable[[Tensor, Tensor, Tensor | None, int], Tensor]
    stride: Pair | None = None
    padding: Pair | None = None
    dilation: Pair | None = None

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return self.run(x, w, bias, groups)

    def is_batched(self, x: Tensor, w_GOCij: Tensor, groups: int) -> bool:
        """Whether `batched` computes this layer for inputs x [..., H, W], and faster than `run` on folded lanes."""
        C, i, j = w_GOCij.shape[2:]
        if self.stride is None or (groups > 1 and C == 1):
            return False
        large = i * j >= 9 and C >= 32 and x.shape[-2] * x.shape[-1] >= 64 * self.stride[0] * self.stride[1]
        return not (large and rounds_to_tf32())  # cuDNN's grouped kernels for TF32 are fast there

    def batched(self, x_GCBHW: Tensor, w_GOCij: Tensor, bias_GO: Tensor | None, groups: int) -> Tensor:
        """[G, O, B, h, v] for inputs and weights of every lane."""
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


def first(values: int | tuple[int, ...] | list[int]) -> int:
    """A layer's setting for its one axis."""
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
    """The windows that a kernel sees of inputs of this shape, [G, C, B, H, W]."""

    shape: tuple[int, int, int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def out(self) -> Pair:
        """h, v."""
        h, v = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(self.shape[3:], self.kernel, self.stride, self.padding, self.dilation)
        )
        return h, v

    @property
    def is_whole(self) -> bool:
        """Whether every window is one pixel and every pixel a window, so that nothing has to be copied."""
        return self.kernel == (1, 1) == self.stride and self.padding == (0, 0)

    def of(self, x: Tensor) -> Tensor:
        """[G, C*i*j, B*h*v]."""
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
        """[G, C, B, H, W]: at every pixel the sum of what the windows hold of it. The adjoint of `of`."""
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
