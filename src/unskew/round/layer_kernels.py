"""Kernels of a model's layers in training: for many clients at once, padded batches and keyed dropout.

A `TorchFunctionMode` intercepts the calls of layers, so it works for any nn.Module; `vmap_layers` has the
kernels. A rectifier before a max pooling is only applied to the maximum of each window. A view of an
activation becomes a copy if kernels use another memory layout. Dropout masks are drawn from a client's key.
Letters: B batch, G lanes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unskew.core.network import Network
from unskew.core.random_keys import key
from unskew.models.time_convolution import edged_norm_relu
from unskew.round.chunks import Chunk, Step
from unskew.round.vmap_layers import (
    Convolution,
    FoldedConvolution,
    FoldedGroupNorm,
    FoldedNorm,
    FoldedPool,
    affine,
    masked_norm,
    pair,
    single,
)


@dataclass(frozen=True)
class PendingRectifier:
    """A rectifier's result that no operation has used yet.

    Rectifiers are monotone, so the maximum of rectified numbers is the rectified maximum, which is cheaper,
    above all in the backward pass. Values and gradients of `relu` and `relu6` are equal to the bit; those of
    a leaky rectifier are equal if windows neither overlap nor have two maxima.
    """

    value: weakref.ref[Tensor]
    of: Tensor
    again: Callable[[Tensor], Tensor]


RectifierCall = tuple[Tensor, Callable[..., Tensor], bool, bool]
"""(the input; the rectifier, a function of x and `inplace`; whether it is monotone; whether in place)."""


def _plain(run: Callable[..., Tensor]) -> Callable[..., RectifierCall]:
    return lambda x, inplace=False: (x, run, True, inplace)


def _hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> RectifierCall:
    # nn.ReLU6 is a hardtanh, too.
    return x, partial(F.hardtanh, min_val=min_val, max_val=max_val), True, inplace


def _leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> RectifierCall:
    return x, partial(F.leaky_relu, negative_slope=negative_slope), negative_slope >= 0, inplace


RECTIFIERS: dict[Any, Callable[..., RectifierCall]] = {
    F.relu: _plain(F.relu),
    torch.relu: _plain(F.relu),
    Tensor.relu: _plain(F.relu),
    F.relu6: _plain(F.relu6),
    F.hardtanh: _hardtanh,
    F.leaky_relu: _leaky_relu,
}
"""Maps functions of torch to functions that parse their arguments."""


def view(_kernels: object, x: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """x in this shape, as a view if possible."""
    if kwargs or (size and isinstance(size[0], torch.dtype)):
        return x.view(*size, **kwargs)
    return x.reshape(*size)


def view_as(_kernels: object, x: Tensor, other: Tensor) -> Tensor:
    """`x` in the shape of `other`, as a kernel for torch's operator of that name."""
    return x.reshape(other.shape)


def view_as_complex(_kernels: object, x: Tensor) -> Tensor:
    """Pairs of numbers as complex numbers; they must be contiguous, which weights with four axes are not."""
    return torch.view_as_complex(x.contiguous())


def _fits(kernel: tuple[int, int], x: Tensor) -> bool:
    return x.shape[2] >= kernel[0] and x.shape[3] >= kernel[1]


def largest_of_windows(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """The maximum of each window of x [B, C, H, W] without padding."""
    for axis, size, step in zip((2, 3), kernel, stride):
        length = x.shape[axis] - size + 1
        places = [slice(i, i + length, step) for i in range(size)]
        x = reduce(torch.maximum, (x[(slice(None),) * axis + (place,)] for place in places))
    return x


VIEWS = {Tensor.view: view, Tensor.view_as: view_as, torch.view_as_complex: view_as_complex}
"""Maps methods of torch to their replacements."""


CHANNELS_LAST = torch.channels_last
Size = int | tuple[int, ...]
"""A stride, a padding, a kernel's size: one number, or one for each axis."""


class Kernels(TorchFunctionMode):
    """The mode around a model's blocks that replaces layers' kernels, see `use_kernels`.

    folded: layers run inside vmap, with all clients in one tensor. frozen: batch normalisation uses running
    statistics also in training (for a client with one sample). padded: batches end in padding, which
    statistics must ignore. mask_shapes: a list to which every dropout layer appends the shape of its mask, or
    None.
    """

    def __init__(self, folded: bool, frozen: bool = False):
        super().__init__()
        self.folded, self.frozen, self.padded = folded, frozen, False
        self.mask_shapes: list[tuple[int, ...]] | None = None
        self._weight_B: Tensor | None = None
        self._dropout: Iterator[Tensor] | None = None
        self._differentiating = False
        self._rectified: PendingRectifier | None = None

    @contextmanager
    def training(self, weight_B: Tensor, dropout: Sequence[Tensor] | None) -> Iterator[None]:
        """A context for one pass of a training step. weight_B: 1 for a sample, 0 for padding. dropout:
        uniform numbers by layer, empty for a layer that draws its own; None: no dropout."""
        self._weight_B = weight_B if self.padded else None
        self._dropout = None if dropout is None else iter(dropout)
        yield
        self._weight_B = None

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        """A context in which layers run as torch's operations, which can be differentiated twice, and
        statistics are not updated."""
        self._differentiating = True
        try:
            yield
        finally:
            self._differentiating = False

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rectified, self._rectified = self._rectified, None  # valid only for the next call
        if rectified and func in _POOLS and args and rectified.value() is args[0]:
            pooled = _KERNELS[func](self, rectified.of, *args[1:], **kwargs)
            return rectified.again(pooled)
        if self._differentiating and func not in _ALWAYS_OURS:
            return func(*args, **kwargs)
        kernel = _KERNELS.get(func)
        if kernel and "input" in kwargs:  # torch's name of the first argument
            args = (kwargs.pop("input"), *args)
        return kernel(self, *args, **kwargs) if kernel else func(*args, **kwargs)

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> Tensor:
        if x.dim() != 4:
            return F.conv2d(x, weight, bias, stride, padding, dilation, groups)  # type: ignore[arg-type]

        def run(x: Tensor, w: Tensor, b: Tensor | None, groups: int) -> Tensor:
            x = x.contiguous(memory_format=CHANNELS_LAST)
            return F.conv2d(x, w, b, stride, padding, dilation, groups)  # type: ignore[arg-type]

        if isinstance(padding, str) and padding != "valid":
            return self._convolution(Convolution(run), x, weight, bias, groups)
        pads = (0, 0) if isinstance(padding, str) else pair(padding)
        return self._convolution(
            Convolution(run, pair(stride), pads, pair(dilation)), x, weight, bias, groups
        )

    def conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> Tensor:
        """A one-dimensional convolution, computed by the faster two-dimensional kernels."""
        if x.dim() != 3:
            return F.conv1d(x, weight, bias, stride, padding, dilation, groups)  # type: ignore[arg-type]
        pads = padding if isinstance(padding, str) else (0, single(padding))
        ways = (1, single(stride)), pads, (1, single(dilation))
        return self.conv2d(x.unsqueeze(-2), weight.unsqueeze(-2), bias, *ways, groups).squeeze(-2)

    def conv_transpose2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        dilation: Size = 1,
    ) -> Tensor:
        def run(x: Tensor, w: Tensor, b: Tensor | None, groups: int) -> Tensor:
            x = x.contiguous(memory_format=CHANNELS_LAST)
            return F.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation)  # type: ignore[arg-type]

        return self._convolution(Convolution(run), x, weight, bias, groups)

    def _convolution(
        self, run: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int
    ) -> Tensor:
        if self.folded:
            return FoldedConvolution.apply(x, weight, bias, groups, run)  # type: ignore[return-value]
        return run(x, weight, bias, groups)

    def max_pool2d(
        self,
        x: Tensor,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        kernel, step = pair(kernel_size), pair(stride or kernel_size)
        plain = pair(padding) == (0, 0) and pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
        # Torch's kernel for this layout is scalar; its gradients decide between equal maxima.
        scalar = x.device.type == "cpu" and x.dim() == 4 and x.is_contiguous()
        if plain and scalar and not (self.folded or x.requires_grad) and _fits(kernel, x):
            return largest_of_windows(x, kernel, step)
        ways = kernel_size, stride, padding, dilation, ceil_mode, return_indices
        return self._pooling(F.max_pool2d, x, *ways)

    def max_pool1d(
        self,
        x: Tensor,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        if x.dim() != 3:
            return F.max_pool1d(x, kernel_size, stride, padding, dilation, ceil_mode)
        step = single(kernel_size if stride is None else stride)
        ways = (1, single(kernel_size)), (1, step), (0, single(padding)), (1, single(dilation)), ceil_mode
        return self.max_pool2d(x.unsqueeze(-2), *ways).squeeze(-2)

    def rectify(self, x: Tensor, run: Callable[..., Tensor], rises: bool, inplace: bool) -> Tensor:
        """The rectified x. If pooling follows, the smaller pooled x is rectified instead, see
        `PendingRectifier`."""
        if inplace:  # a model may continue to use x itself
            return run(x, inplace=True)
        y = run(x)
        if rises and (x.requires_grad or self.folded):
            self._rectified = PendingRectifier(weakref.ref(y), x, run)
        return y

    def avg_pool2d(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._pooling(F.avg_pool2d, x, *args, **kwargs)

    def adaptive_avg_pool2d(self, x: Tensor, output_size: Size) -> Tensor:
        if output_size in (1, (1, 1)):
            return x.mean((-2, -1), keepdim=True)
        return self._pooling(F.adaptive_avg_pool2d, x, output_size)

    def _pooling(self, pool: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # An image without a batch axis has its rows at the axis of folded lanes.
        if self.folded and x.dim() == 4:
            return FoldedPool.apply(x, lambda t: pool(t, *args, **kwargs))  # type: ignore[return-value]
        return pool(x, *args, **kwargs)

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        record = not self._differentiating and running_mean is not None
        if running_mean is not None and (not training or self.frozen):
            return affine(x, running_mean, (running_var + eps).rsqrt(), weight, bias)
        if self._weight_B is not None:
            running = None if running_mean is None or not record else (running_mean, running_var)
            return masked_norm(x, self._weight_B, running, weight, bias, momentum, eps)
        if record and self.folded:
            return FoldedNorm.apply(x, running_mean, running_var, weight, bias, momentum, eps)  # type: ignore[return-value]
        mean, var = (running_mean, running_var) if record else (None, None)
        return F.batch_norm(x, mean, var, weight, bias, True, momentum, eps)

    def group_norm(
        self,
        x: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if self.folded:
            return FoldedGroupNorm.apply(x, num_groups, weight, bias, eps)  # type: ignore[return-value]
        return F.group_norm(x, num_groups, weight, bias, eps)

    def edged_norm_relu(self, *args: Any) -> Any:
        inside, edge, mean, var, w, b, training, momentum, eps, *_ = args
        record = not self._differentiating
        training, fast = training and not self.frozen, record and not self.folded
        return edged_norm_relu(
            inside, edge, mean, var, w, b, training, momentum, eps, self._weight_B, fast, record
        )

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        if self.mask_shapes is not None:
            self.mask_shapes.append(tuple(x.shape))
        if self._dropout is None:
            return x
        numbers = next(self._dropout)
        if not numbers.numel():
            return F.dropout(x, p, True, inplace)
        keep, share = numbers >= p, 1 - p or 1.0
        return x.mul_(keep).div_(share) if inplace else x * keep / share


@contextmanager
def use_kernels(net: Network, kernels: Kernels) -> Iterator[None]:
    """A context in which a network's blocks run with these kernels."""
    before = net.around, net.differentiable
    net.around, net.differentiable = (lambda: kernels), kernels.differentiating
    try:
        yield
    finally:
        net.around, net.differentiable = before


def _rectifier_kernel(named: Callable[..., RectifierCall]) -> Callable[..., Tensor]:
    return lambda kernels, *args, **kwargs: kernels.rectify(*named(*args, **kwargs))


_ALWAYS_OURS = {F.batch_norm, F.dropout, edged_norm_relu, *VIEWS}
"""Operations that always use our kernels."""
_POOLS = {F.max_pool1d, torch.max_pool1d, F.max_pool2d, torch.max_pool2d}
_KERNELS: dict[Any, Callable[..., Any]] = {
    **VIEWS,
    **{func: _rectifier_kernel(named) for func, named in RECTIFIERS.items()},
    torch.conv1d: Kernels.conv1d,
    F.conv1d: Kernels.conv1d,
    F.max_pool1d: Kernels.max_pool1d,
    torch.max_pool1d: Kernels.max_pool1d,
    torch.conv2d: Kernels.conv2d,
    F.conv2d: Kernels.conv2d,
    F.conv_transpose2d: Kernels.conv_transpose2d,
    F.max_pool2d: Kernels.max_pool2d,
    torch.max_pool2d: Kernels.max_pool2d,
    F.avg_pool2d: Kernels.avg_pool2d,
    F.adaptive_avg_pool2d: Kernels.adaptive_avg_pool2d,
    F.batch_norm: Kernels.batch_norm,
    F.group_norm: Kernels.group_norm,
    F.dropout: Kernels.dropout,
    edged_norm_relu: Kernels.edged_norm_relu,
}


_DRAWING_LOCK = threading.Lock()
"""A lock for drawing from torch's own generator, which all threads share."""


@contextmanager
def model_draws(net: Network, device: torch.device, *purpose: object) -> Iterator[None]:
    """A context in which a model with its own random numbers (attention with dropout) draws them for this
    purpose.

    Such a model trains one client at a time; other models are unaffected.
    """
    if not net.draws:
        yield
        return
    with _DRAWING_LOCK, torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.manual_seed(key(*purpose).initial_seed())
        yield


def mask_shapes(net: Network, until: str | None = None) -> tuple[tuple[int, ...] | None, ...]:
    """The shape of one sample's mask in every dropout layer, in the order of the forward pass.

    None for a layer with a first axis other than the batch (in a recurrent model, or on weights); it draws
    from torch's own generator. until: only the layers up to this cut.
    """
    two, three = (_masks(net, until, B) for B in (2, 3))
    return tuple(a[1:] if a[:1] == (2,) and b[:1] == (3,) else None for a, b in zip(two, three))


def _masks(net: Network, until: str | None, B: int) -> list[tuple[int, ...]]:
    """The shape of every dropout layer's mask for a batch of B."""
    kernels = Kernels(folded=False)
    kernels.mask_shapes = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), use_kernels(net, kernels):
        net.run(net.weights(), torch.zeros((B, *net.shape)), until=until, train=True)
    return kernels.mask_shapes


class DropoutMasks:
    """The uniform numbers that determine dropout, one tensor per layer and step.

    generators: one for each client of the chunk.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...] | None], chunk: Chunk, generators: Sequence[torch.Generator]
    ):
        self.shapes, self.chunk, self.generators = shapes, chunk, generators

    def at(self, step: Step) -> list[Tensor]:
        """Uniform numbers [G, B, *shape] for each layer, [G, 0] for a layer that draws its own. A client
        draws only for its samples, regardless of padding."""
        layers = []
        for shape in self.shapes:
            if shape is None:
                layers.append(torch.zeros((step.width, 0)))
                continue
            numbers = torch.zeros((step.width, step.size, *shape))
            for g, work in enumerate(self.chunk.work[: step.active]):
                samples = work.short if step.short else step.size
                samples = samples if step.drawn_G is None else int(step.drawn_G[g])
                numbers[g, :samples] = torch.rand((samples, *shape), generator=self.generators[g])
            layers.append(numbers)
        return layers
