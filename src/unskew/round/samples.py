"""The samples of all clients as tensors: in memory, or read from a disk by a thread ahead of training.

`feeds` yields what each step reads of them. Letters: B batch, C classes, G lanes, K clients, N samples.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from unskew.core.trees import align
from unskew.data.clients.partition import Index
from unskew.data.storage.rows_on_disk import Rows
from unskew.round.chunks import Step
from unskew.round.layer_kernels import DropoutMasks


def on_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The values on a device, aligned as torch allocates them. Copies to a GPU are asynchronous."""
    host = torch.as_tensor(values)
    if device.type != "cuda" or host.device.type == "cuda":
        return align(host.to(device))
    return host.contiguous().pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Samples:
    """The training samples of all clients.

    x: inputs, [N, *shape].
    y: the task's targets: class distributions [N, C], or [N, C, H, W] where samples have masks.
    rows: for each client, which rows of x and y are its own.
    counts_KC: for each client, its number of samples (of pixels, where samples have masks) per class.
    importance: [N], the weight of each sample in the loss; None for equal ones.
    """

    x: Tensor
    y: Tensor
    rows: Index | Sequence[np.ndarray]
    counts_KC: np.ndarray
    importance: Tensor | None = None


class Feed(NamedTuple):
    """The inputs of one step, on the device.

    rows: [B*G], indices of the step's samples; for each place in the batch, one client after another.
    local: [G], the number of steps that each lane has taken before. weight: [G, B], 1 for a sample and 0 for
    padding; None without padding. dropout: the uniform numbers of each dropout layer, [G, B, ...].
    x: the step's samples, [B*G, ...], if they were read from a disk; None if all are on the device.
    """

    rows: Tensor
    local: Tensor
    weight: Tensor | None
    dropout: tuple[Tensor, ...]
    x: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that differ between steps, in a fixed order."""
        return [t for t in (self.rows, self.local, self.weight, self.x) if t is not None] + [*self.dropout]

    def clone(self) -> Feed:
        """A copy in memory of its own."""
        weight, x = (None if t is None else t.clone() for t in (self.weight, self.x))
        return Feed(self.rows.clone(), self.local.clone(), weight, tuple(t.clone() for t in self.dropout), x)

    def inputs(self, samples: Samples) -> Tensor:
        """The step's samples, [B*G, ...]."""
        return samples.x.index_select(0, self.rows) if self.x is None else self.x


READS_AHEAD = 4
"""The number of reads ahead of training, for each thread that trains."""
BATCHES_AT_ONCE, BYTES_AT_ONCE = 8, 4 << 20
"""The most batches and bytes of one read; several small batches are faster in one read."""
SHARE_OF_GPU = 0.25
"""Samples that need at most this share of a GPU's memory are copied there once."""


class StreamedSamples:
    """Samples [N, ...] that are read from a disk when they are indexed; a thread reads those of training
    steps ahead."""

    def __init__(self, rows: Rows, device: torch.device):
        self.rows, self.device, self.shape = rows, device, torch.Size(rows.shape)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, Tensor) and index.dtype != torch.bool:
            return cast(Tensor, _StreamedRows.apply(index, self))
        numbers = index.cpu().numpy() if isinstance(index, Tensor) else index
        return on_device(self.rows[numbers], self.device)

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        """The samples of these rows, as torch's tensors return them."""
        return self[rows]

    def taken(self, rows: Tensor) -> Tensor:
        """The samples at indices of any shape: [*rows, ...]."""
        x = self.rows[rows.reshape(-1).cpu().numpy()]
        return on_device(x.reshape(*rows.shape, *self.shape[1:]), self.device)

    def ahead(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor]:
        """The samples of each batch of indices [n]; the next few are read in the meantime."""
        pending: deque[Future[np.ndarray]] = deque()
        groups = self._together(batches)
        coming = iter(range(len(groups)))
        try:
            for group in groups:
                for number in coming:
                    pending.append(self._reader.submit(self._read, groups, number))
                    if len(pending) > READS_AHEAD:
                        break
                x = pending.popleft().result()
                ends = np.cumsum([len(batch) for batch in group])
                yield from (on_device(part, self.device) for part in np.split(x, ends[:-1]))
        finally:
            for read in pending:
                read.cancel()

    def _read(self, groups: Sequence[Sequence[np.ndarray]], number: int) -> np.ndarray:
        """The samples of a group of batches; the disk may fetch those of the next group in the meantime."""
        if number + 1 < len(groups):
            self.rows.prefetch(np.concatenate(groups[number + 1]))
        return self.rows[np.concatenate(groups[number])]

    def _together(self, batches: Sequence[np.ndarray]) -> list[Sequence[np.ndarray]]:
        """The batches in groups for one read each. The first is read alone so that training starts
        early."""
        sample_bytes = 4 * math.prod(self.shape[1:])
        most = max(
            1, min(BATCHES_AT_ONCE, BYTES_AT_ONCE // max(1, sample_bytes * max(map(len, batches), default=1)))
        )
        rest = batches[1:]
        return [batches[:1], *(rest[i : i + most] for i in range(0, len(rest), most))] if batches else []


class _StreamedRows(torch.autograd.Function):
    """The indexing of streamed samples, also under `vmap`, with different rows for each lane."""

    @staticmethod
    def forward(rows: Tensor, samples: StreamedSamples) -> Tensor:  # type: ignore[override]
        return samples.taken(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Tensor, samples: StreamedSamples) -> tuple[Tensor, int]:  # type: ignore[override]
        return cast(Tensor, _StreamedRows.apply(rows.movedim(in_dims[0], 0), samples)), 0


def feeds(plan: Sequence[Step], samples: Samples, dropout: DropoutMasks) -> Iterator[Feed]:
    """The feed of each step, in order. Row numbers and weights of all steps are copied to the device at once;
    dropout's numbers and samples from a disk follow step by step."""
    device, x = samples.x.device, samples.x
    by_sample = [step.rows_GB.T.ravel() for step in plan]
    rows = on_device(np.concatenate(by_sample), device)
    read = x.ahead(by_sample) if isinstance(x, StreamedSamples) else repeat(None)
    local = on_device(np.concatenate([step.local_G for step in plan]), device)
    masks = [step.weight_GB.ravel() for step in plan if step.weight_GB is not None]
    weights = iter(on_device(np.concatenate(masks), device).split([len(m) for m in masks]) if masks else ())
    by_step = zip(
        plan, rows.split([step.rows_GB.size for step in plan]), local.split([step.width for step in plan])
    )
    for (step, index, before), x_step in zip(by_step, read):
        weight = None if step.weight_GB is None else next(weights).view(step.width, step.size)
        masks_at = tuple(on_device(numbers, device) for numbers in dropout.at(step))
        yield Feed(index, before, weight, masks_at, x_step)


def load_samples(x: np.ndarray, device: str | torch.device) -> Tensor:
    """Samples [N, ...] on a device, float32; or `StreamedSamples`, whose rows are float32."""
    device = torch.device(device)
    if isinstance(x, Rows):
        return _load_all(x, device) if _fits_gpu(x, device) else cast(Tensor, StreamedSamples(x, device))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable"
        )  # nothing writes to samples
        return torch.as_tensor(np.asarray(x), dtype=torch.float32).to(device)


def _fits_gpu(x: Rows, device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and x.nbytes <= SHARE_OF_GPU * torch.cuda.get_device_properties(device).total_memory
    )


def _load_all(x: Rows, device: torch.device) -> Tensor:
    """All samples on a device, through the memory of one block."""
    kept = torch.empty(x.shape, device=device)
    step = max(1, (1 << 24) // max(1, x[:1].size))
    for begin in range(0, len(x), step):
        kept[begin : begin + step] = torch.as_tensor(x[begin : begin + step])
    return kept
