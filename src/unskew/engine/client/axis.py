"""The axis of clients: how tensors of the clients of a chunk are laid out, and how one client's function runs for all.

`Many` trains clients side by side: tensors have a first axis of lanes, and functions run under `torch.func.vmap`.
`One` trains one client at a time: there is no such axis at all, and functions run as they are written.
Letters: B batch, G lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unskew.core.trees import Tree, Weights, tree_map
from unskew.engine.client.schedule import Chunk, Step, Work

LARGE = 1 << 14
"""Elements of a weight from which its layout in memory is worth a thought."""


class Axis(Protocol):
    """What differs between training one client at a time and many side by side."""

    folded: bool
    """Whether layers see all clients in one tensor."""

    def work(self, chunk: Chunk) -> Sequence[Work]:
        """The work of every lane; at least two lanes where clients train side by side."""
        ...

    def widened(self, step: Step) -> Step:
        """The step, with at least two lanes where clients train side by side."""
        ...

    def padded(self, step: Step) -> bool:
        """Whether layers must leave out the padding of this step's batches."""
        ...

    def rows_a_visit(self, most: int, batch: int) -> int:
        """How many rows a pass over a client's data sees at once; most: the largest client's number of rows."""
        ...

    def stack(self, trees: Sequence[Mapping[str, Any]]) -> Tree:
        """One tree from one tree a lane; a copy, which training may change."""
        ...

    def stack_weights(self, weights: Sequence[Weights]) -> Weights:
        """The same for weights, in the layout in memory that trains fastest."""
        ...

    def fit(self, t: Tensor) -> Tensor:
        """[G, ...] -> what a function that runs for all lanes is given."""
        ...

    def inputs(self, x: Tensor, step: Step) -> Tensor:
        """The step's inputs [B*G, ...], sample by sample -> what the loss of all lanes is given."""
        ...

    def targets(self, y: Tensor, step: Step) -> Tensor:
        """The step's targets, likewise."""
        ...

    def first(self, t: Tensor, lanes: int) -> Tensor:
        """The first lanes of a stacked tensor, as a view."""
        ...

    def lane(self, t: Tensor, g: int) -> Tensor:
        """What lane g holds of a stacked tensor, as a view."""
        ...

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        """One client's function, run for all lanes of stacked trees."""
        ...

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """One client's loss(weights, x, rest), for all lanes at once."""
        ...


class One:
    """One client at a time."""

    folded = False

    def work(self, chunk: Chunk) -> Sequence[Work]:
        return chunk.work

    def widened(self, step: Step) -> Step:
        return step

    def padded(self, step: Step) -> bool:
        return False

    def rows_a_visit(self, most: int, batch: int) -> int:
        return most

    def stack(self, trees: Sequence[Mapping[str, Any]]) -> Tree:
        return tree_map(_copy, trees[0])

    def stack_weights(self, weights: Sequence[Weights]) -> Weights:
        return self.stack(weights)

    def fit(self, t: Tensor) -> Tensor:
        return t[0]

    def inputs(self, x: Tensor, step: Step) -> Tensor:
        return x

    def targets(self, y: Tensor, step: Step) -> Tensor:
        return y

    def first(self, t: Tensor, lanes: int) -> Tensor:
        return t

    def lane(self, t: Tensor, g: int) -> Tensor:
        return t

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        return function(*trees)

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return function


class Many:
    """Clients side by side. There are always at least two lanes: one alone would take other kernels, with other bits."""

    folded = True

    def work(self, chunk: Chunk) -> Sequence[Work]:
        return chunk.work if len(chunk.work) > 1 else chunk.work * 2

    def widened(self, step: Step) -> Step:
        if step.width > 1:
            return step
        weight = None if step.weight_GB is None else np.repeat(step.weight_GB, 2, 0)
        rows, local = np.repeat(step.rows_GB, 2, 0), np.repeat(step.local_G, 2)  # drawn_G counts active lanes only
        return replace(step, rows_GB=rows, weight_GB=weight, local_G=local)

    def padded(self, step: Step) -> bool:
        return step.short

    def rows_a_visit(self, most: int, batch: int) -> int:
        return batch

    def stack(self, trees: Sequence[Mapping[str, Any]]) -> Tree:
        return {
            n: self.stack([t[n] for t in trees]) if isinstance(v, Mapping) else torch.stack([t[n] for t in trees])
            for n, v in trees[0].items()
        }

    def stack_weights(self, weights: Sequence[Weights]) -> Weights:
        return {n: _as_gradients(t) for n, t in self.stack(weights).items()}

    def fit(self, t: Tensor) -> Tensor:
        return t

    def inputs(self, x: Tensor, step: Step) -> Tensor:
        return x.unflatten(0, (step.size, step.width))  # [B, G, ...]: convolutions see it folded without a copy

    def targets(self, y: Tensor, step: Step) -> Tensor:
        return y.unflatten(0, (step.size, step.width)).transpose(0, 1)

    def first(self, t: Tensor, lanes: int) -> Tensor:
        return t[:lanes]

    def lane(self, t: Tensor, g: int) -> Tensor:
        return t[g]

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        return torch.func.vmap(function)(*trees)

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.func.vmap(function, in_dims=(0, 1, 0))


def axis_for(lanes: int) -> Axis:
    """The axis for at most this many clients side by side."""
    return Many() if lanes > 1 else One()


def _as_gradients(t: Tensor) -> Tensor:
    """Large dense layers' weights [G, out, in], in memory as [G, in, out]: the layout in which their gradients come.

    The sum of two tensors of different layouts takes four times as long; small tensors do not matter.
    """
    return t.mT.contiguous().mT if t.dim() == 3 and t[0].numel() >= LARGE else t


def _copy(t: Tensor) -> Tensor:
    """A copy; of a convolution's weights, in the layout that the kernels want."""
    return t.detach().clone(memory_format=torch.channels_last if t.dim() == 4 else torch.preserve_format)
