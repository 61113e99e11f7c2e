"""What a model's layers run as while it trains: folded over clients, with masked batches and keyed dropout.

Under `torch.func.vmap` an activation of G clients is one tensor; here it is kept as [B, G, C, H, W] in channels-last
memory and seen by convolutions as [B, G*C, H, W] with G groups, which on a CPU is far faster than one client after
another in the default layout. A `TorchFunctionMode` catches the layers' calls, so any nn.Module is served.

Letters: B batch, G lanes (clients side by side), C channels, H, W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unskew.core.network import Network
from unskew.models.columns import edged_norm_relu

_LAST = torch.channels_last


class Kernels(TorchFunctionMode):
    """Enter around a model's blocks.

    lanes: inside vmap. weight: per-sample weights of a batch that ends in padding, else None. frozen: normalise by
    running statistics although training (a client with one sample). dropout: uniform numbers, one tensor a layer.
    """

    def __init__(self, lanes: bool):
        super().__init__()
        self.lanes = lanes
        self.weight: Tensor | None = None
        self.frozen = False
        self.dropout: Iterator[Tensor] | None = None
        self.seen: list[tuple[int, ...]] | None = None
        self.looking = False
        """A derivative is taken along a direction: torch's own operations, which know how, and nothing recorded."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if self.looking and func not in (F.batch_norm, F.dropout, edged_norm_relu):
            return func(*args, **kwargs)
        caught = _CAUGHT.get(func)
        return caught(self, *args, **kwargs) if caught else func(*args, **kwargs)

    def conv2d(self, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        def run(x, w, b, groups):
            return F.conv2d(x.contiguous(memory_format=_LAST), w, b, stride, padding, dilation, groups)

        return _Conv.apply(x, weight, bias, groups, run) if self.lanes else run(x, weight, bias, groups)

    def conv_transpose2d(self, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        def run(x, w, b, groups):
            x = x.contiguous(memory_format=_LAST)
            return F.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation)

        return _Conv.apply(x, weight, bias, groups, run) if self.lanes else run(x, weight, bias, groups)

    def pooling(self, pool: Callable, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _Pool.apply(x, lambda t: pool(t, *args, **kwargs)) if self.lanes else pool(x, *args, **kwargs)

    def max_pool2d(self, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        return self.pooling(F.max_pool2d, x, kernel_size, stride, padding, dilation, ceil_mode)

    def avg_pool2d(self, x, *args, **kwargs):
        return self.pooling(F.avg_pool2d, x, *args, **kwargs)

    def adaptive_avg_pool2d(self, x, output_size):
        if output_size in (1, (1, 1)):
            return x.mean((-2, -1), keepdim=True)
        return self.pooling(F.adaptive_avg_pool2d, x, output_size)

    def batch_norm(self, x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        mean, var, w, b = running_mean, running_var, weight, bias
        if not training or self.frozen:
            return _affine(x, mean, (var + eps).rsqrt(), w, b)
        if self.weight is not None:
            return _masked_norm(x, self.weight, None if self.looking else (mean, var), w, b, momentum, eps)
        if self.looking:
            return F.batch_norm(x, None, None, w, b, True, momentum, eps)
        if self.lanes:
            return _Norm.apply(x, mean, var, w, b, momentum, eps)
        return F.batch_norm(x, mean, var, w, b, True, momentum, eps)

    def edged_norm_relu(self, inside, edge, mean, var, w, b, training, momentum, eps):
        training, fast = training and not self.frozen, not (self.lanes or self.looking)
        return edged_norm_relu(
            inside, edge, mean, var, w, b, training, momentum, eps, self.weight, fast, not self.looking
        )

    def drop(self, x, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return x
        if self.seen is not None:
            self.seen.append(tuple(x.shape[1:]))
        if self.dropout is None:
            return x
        return x * (next(self.dropout) >= p) / (1 - p)


class around:
    """Let a network's blocks run within these kernels."""

    def __init__(self, net: Network, kernels: Kernels):
        self.net, self.kernels = net, kernels

    def __enter__(self) -> None:
        self.before, self.net.around = self.net.around, lambda: self.kernels

    def __exit__(self, *_: object) -> None:
        self.net.around = self.before


_CAUGHT = {
    torch.conv2d: Kernels.conv2d,
    F.conv2d: Kernels.conv2d,
    F.conv_transpose2d: Kernels.conv_transpose2d,
    F.max_pool2d: Kernels.max_pool2d,
    torch.max_pool2d: Kernels.max_pool2d,
    F.avg_pool2d: Kernels.avg_pool2d,
    F.adaptive_avg_pool2d: Kernels.adaptive_avg_pool2d,
    F.batch_norm: Kernels.batch_norm,
    F.dropout: Kernels.drop,
    edged_norm_relu: Kernels.edged_norm_relu,
}


def _fold(x: Tensor, lane: int) -> Tensor:
    """[.., G, ..] with the lanes at `lane` -> [B, G*C, H, W]; a view when memory is [B, H, W, G, C]."""
    return x.movedim(lane, 1).flatten(1, 2)


class _Folded(torch.autograd.Function):
    """A function whose only business is its vmap rule; autograd runs through what the rule calls."""

    generate_vmap_rule = False

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("gradients inside vmap are not supported here; train with lanes=1")


class _Conv(_Folded):
    """A convolution or a transposed one: `run(x, w, bias, groups)`. Groups lie along the first axis of both's weights."""

    @staticmethod
    def forward(x, w, bias, groups, run):
        return run(x, w, bias, groups)

    @staticmethod
    def vmap(info, dims, x, w, bias, groups, run):
        G = info.batch_size
        if dims[1] is None:  # one set of weights for all (a frozen teacher): lanes join the batch
            return run(x.movedim(dims[0], 0).flatten(0, 1), w, bias, groups).unflatten(0, (G, -1)), 0
        folded = _fold(
            x.unsqueeze(1).expand(-1, G, *x.shape[1:]) if dims[0] is None else x, 1 if dims[0] is None else dims[0]
        )
        w = w.movedim(dims[1], 0).flatten(0, 1)
        bias = bias if bias is None else bias.movedim(dims[2], 0).flatten(0, 1)
        return run(folded, w, bias, groups * G).unflatten(1, (G, -1)), 1


class _Pool(_Folded):
    @staticmethod
    def forward(x, pool):
        return pool(x)

    @staticmethod
    def vmap(info, dims, x, pool):
        return pool(_fold(x, dims[0])).unflatten(1, (info.batch_size, -1)), 1


class _Norm(_Folded):
    """Batch statistics per lane; running statistics are updated in place, as torch does."""

    @staticmethod
    def forward(x, mean, var, w, b, momentum, eps):
        return F.batch_norm(x, mean, var, w, b, True, momentum, eps)

    @staticmethod
    def vmap(info, dims, x, mean, var, w, b, momentum, eps):
        folded = _fold(x, dims[0])
        flat = [t if t is None else t.movedim(d, 0).flatten() for t, d in zip((mean, var, w, b), dims[1:5])]
        y = F.batch_norm(folded, *flat, True, momentum, eps)
        return y.unflatten(1, (info.batch_size, -1)), 1


def _affine(x: Tensor, mean: Tensor, scale: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    scale = scale if w is None else scale * w
    shift = -mean * scale if b is None else b - mean * scale
    shape = (-1, *[1] * (x.dim() - 2))
    return x * scale.reshape(shape) + shift.reshape(shape)


def _masked_norm(x, weight_B, running, w, b, momentum, eps):
    """Batch normalisation over the samples of weight 1; running: (mean, var) to be updated, or None.

    In the layout [C, B*H*W], where every sum runs along contiguous memory: such sums have the same bits whatever
    the number of lanes, which sums over a folded tensor have not.
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
