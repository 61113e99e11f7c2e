"""A convolution over time that pads columns, and computes the padding only once per batch.

HARNet's kernels are one column wide, but pad a column of zeros on either side. Every layer therefore adds two
columns that do not depend on the input: they are equal for all samples, and the left one mirrors the right
one. Here an activation [B, C, H, W] is stored in two parts: the columns that depend on the sample, [B, C, H,
w], and the k columns on either side, once for the whole batch. Function, weights and batch statistics equal
those without the split.

Letters: B batch, C channels, H height (time), W = w + 2 k width, V values of a channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_variadic


@dataclass(frozen=True)
class Columns:
    """An activation in two parts.

    inside: [B, C, H, w]. edge: [1, C, H, k], the columns on either side, from the outermost one inwards.
    """

    inside: Tensor
    edge: Tensor

    def full(self) -> Tensor:
        """The whole activation, [B, C, H, k + w + k]."""
        left = self.edge.expand(self.inside.shape[0], -1, -1, -1)  # `len` would fix the number in a graph
        return torch.cat([left, self.inside, left.flip(-1)], -1)


class TimeConv(nn.Sequential):
    """Convolution over time, batch normalisation, ReLU; `narrow` computes it on an activation in two
    parts."""

    def __init__(self, i: int, o: int, kernel: int, stride: int):
        super().__init__(nn.Conv2d(i, o, (kernel, 1), (stride, 1), 1), nn.BatchNorm2d(o), nn.ReLU())

    def narrow(self, x: Tensor | Columns) -> Columns:
        """The block's activation in two parts. x: the input, whole or in two parts."""
        conv, norm = self[0], self[1]
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        inside, edge = (x.inside, x.edge) if isinstance(x, Columns) else (x, x.new_zeros(1, *x.shape[1:3], 0))
        inside, edge = (
            F.conv2d(part, conv.weight, conv.bias, conv.stride, (conv.padding[0], 0))  # type: ignore[arg-type]
            for part in (inside, F.pad(edge, (1, 0)))
        )
        assert norm.momentum is not None
        inside, edge = edged_norm_relu(
            inside,
            edge,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            norm.training,
            norm.momentum,
            norm.eps,
        )
        return Columns(inside, edge)


def edged_norm_relu(
    inside, edge, mean, var, w, b, training, momentum, eps, weight_B=None, fast=False, record=True
):
    """ReLU of the batch normalisation of an activation in two parts, equal to that of the whole: (inside,
    edge).

    mean, var: running statistics [C], used unless `training`. w, b: scale and shift [C]. weight_B: 1 for a
    sample, 0 for padding. fast: one fused step, which works only outside vmap and cannot be differentiated
    twice. record: update the running statistics in place. The engine's function mode sets the last three.
    """
    given = (inside, edge, mean, var, w, b)
    if has_torch_function_variadic(*given):
        return handle_torch_function(
            edged_norm_relu, given, *given, training, momentum, eps, weight_B, fast, record
        )
    if not training:
        return _affine_relu(inside, edge, mean, var, w, b, eps)
    if fast and weight_B is None:
        inside, edge, batch_mean, batch_var = _Fused.apply(inside, edge, w, b, eps)
        count = _count(inside, edge, len(inside))
    else:
        batch_mean, batch_var, count = _moments(inside, edge, weight_B)
        inside, edge = _affine_relu(inside, edge, batch_mean, batch_var, w, b, eps)
    if record:
        with torch.no_grad():
            mean.mul_(1 - momentum).add_(momentum * batch_mean)
            var.mul_(1 - momentum).add_(momentum * batch_var * count / (count - 1))
    return inside, edge


def _affine_relu(inside, edge, mean, var, w, b, eps):
    scale = w * (var + eps).rsqrt()
    shift = b - mean * scale
    scale, shift = scale[:, None, None], shift[:, None, None]
    return torch.addcmul(shift, inside, scale).relu(), torch.addcmul(shift, edge, scale).relu()


class _Fused(torch.autograd.Function):
    """Normalisation and ReLU, forward and backward, with few passes over memory, on values [V, C]."""

    @staticmethod
    def forward(ctx, inside, edge, w, b, eps):
        rows, outer = _rows(inside), _rows(edge)
        twice = 2 * len(inside)
        count = len(rows) + twice * len(outer)
        mean = (rows.sum(0) + twice * outer.sum(0)) / count
        rows, outer = rows - mean, outer - mean
        var = (torch.linalg.vector_norm(rows, dim=0).square() + twice * outer.square().sum(0)) / count
        rate = (var + eps).rsqrt()
        outputs = [torch.addcmul(b, centred, w * rate).relu_() for centred in (rows, outer)]
        ctx.save_for_backward(rows, outer, *outputs, w, rate)
        ctx.count, ctx.twice = count, twice
        ctx.mark_non_differentiable(mean, var)
        return *(_maps(y, like) for y, like in zip(outputs, (inside, edge))), mean, var

    @staticmethod
    def backward(ctx, *gradients):
        g_inside, g_edge, *_ = gradients
        rows, outer, y_rows, y_outer, w, rate = ctx.saved_tensors
        g, g_outer = _rows(g_inside) * (y_rows > 0), _rows(g_edge) * (y_outer > 0)
        total = g.sum(0) + g_outer.sum(0)  # the gradient of the edge is summed over its copies already
        along = (g * rows).sum(0) + (g_outer * outer).sum(0)
        constant, slope = total / ctx.count, along * rate.square() / ctx.count
        pull = g.sub_(constant).sub_(rows * slope).mul_(w * rate)
        pull_outer = (g_outer - ctx.twice * (constant + outer * slope)) * (w * rate)
        return _maps(pull, g_inside), _maps(pull_outer, g_edge), along * rate, total, None


def _rows(h: Tensor) -> Tensor:
    """[B, C, H, W] as [B*H*W, C], a view if the memory is channels-last."""
    return h.permute(0, 2, 3, 1).reshape(-1, h.shape[1])


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    """[B*H*W, C] as [B, C, H, W], with the shape of another activation."""
    B, C, H, W = like.shape
    return rows.reshape(B, H, W, C).permute(0, 3, 1, 2)


def _count(inside: Tensor, edge: Tensor, n):
    """The number of values per channel of the whole activation for n samples."""
    return n * (inside[0, 0].numel() + 2 * edge[0, 0].numel())


def _moments(inside: Tensor, edge: Tensor, weight_B: Tensor | None):
    """(mean [C], population variance [C], number of values per channel) of the whole activation."""
    n = len(inside) if weight_B is None else weight_B.sum().clamp(min=1)
    outer = 2 * n * edge[0, 0].numel()
    inner = n * inside[0, 0].numel()
    if weight_B is None:
        in_var, in_mean = torch.var_mean(inside, (0, 2, 3), correction=0)
    else:
        # Sums along contiguous memory have equal bits for any number of lanes.
        rows = inside.transpose(0, 1).flatten(1).contiguous()
        weight = weight_B.repeat_interleave(rows.shape[1] // len(inside))
        in_mean = (rows * weight).sum(1) / inner
        in_var = ((rows - in_mean[:, None]) * weight).pow(2).sum(1) / inner
    out_var, out_mean = torch.var_mean(edge, (0, 2, 3), correction=0)
    count = inner + outer
    mean = (inner * in_mean + outer * out_mean) / count
    var = (inner * (in_var + (in_mean - mean).pow(2)) + outer * (out_var + (out_mean - mean).pow(2))) / count
    return mean, var, count
