"""A federation's samples as torch reads them: in memory, or read when they are wanted by a thread that runs ahead of training."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unskew.data.rows import Rows
from unskew.engine.client.transfer import on_device

AHEAD = 4
"""Reads that are made before they are wanted, for each thread that trains."""
TOGETHER, TOGETHER_BYTES = 8, 4 << 20
"""Batches that are read at once, where they take no more than so many bytes: small reads cost more than what they bring."""
SHARE_OF_GPU = 0.25
"""Samples that take at most this share of a GPU's memory are read once and stay there."""


class Streamed:
    """Samples [N, ...] that are read when rows of them are taken; those of training steps are read ahead, by one thread."""

    def __init__(self, rows: Rows, device: torch.device):
        self.rows, self.device, self.shape = rows, device, torch.Size(rows.shape)
        self.together = rows.source.together
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, Tensor) and index.dtype != torch.bool:
            return cast(Tensor, _Taken.apply(index, self))
        numbers = index.cpu().numpy() if isinstance(index, Tensor) else index
        return on_device(self.rows[numbers], self.device)

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        return self[rows]

    def taken(self, rows: Tensor) -> Tensor:
        """The samples at these numbers, of any shape: [*rows, ...]."""
        x = self.rows[rows.reshape(-1).cpu().numpy()]
        return on_device(x.reshape(*rows.shape, *self.shape[1:]), self.device)

    def ahead(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor]:
        """The samples of each batch of numbers [n], of which the next few are read meanwhile."""
        pending: deque[Future[np.ndarray]] = deque()
        groups = self._together(batches)
        coming = iter(range(len(groups)))
        try:
            for group in groups:
                for number in coming:
                    pending.append(self._reader.submit(self._read, groups, number))
                    if len(pending) > (1 if self.together else AHEAD):
                        break
                x = pending.popleft().result()
                ends = np.cumsum([len(batch) for batch in group])
                yield from (on_device(part, self.device) for part in np.split(x, ends[:-1]))
        finally:
            for read in pending:
                read.cancel()

    def _read(self, groups: Sequence[Sequence[np.ndarray]], number: int) -> np.ndarray:
        """The samples of a group of batches; a disk fetches those of the next one meanwhile."""
        if number + 1 < len(groups):
            self.rows.coming(np.concatenate(groups[number + 1]))
        return self.rows[np.concatenate(groups[number])]

    def _together(self, batches: Sequence[np.ndarray]) -> list[Sequence[np.ndarray]]:
        """The batches in groups that are read at once; the first is alone, so that training need not wait for more, unless it
        would have to wait as long for itself."""
        sample_bytes = 4 * math.prod(self.shape[1:])
        if self.together:
            most = max(1, self.together // max(1, sample_bytes * max(map(len, batches), default=1)))
            return [batches[i : i + most] for i in range(0, len(batches), most)]
        most = max(1, min(TOGETHER, TOGETHER_BYTES // max(1, sample_bytes * max(map(len, batches), default=1))))
        rest = batches[1:]
        return [batches[:1], *(rest[i : i + most] for i in range(0, len(rest), most))] if batches else []


class _Taken(torch.autograd.Function):
    """Rows of streamed samples, also where every lane takes its own under `vmap`."""

    @staticmethod
    def forward(rows: Tensor, samples: Streamed) -> Tensor:  # type: ignore[override]
        return samples.taken(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Tensor, samples: Streamed) -> tuple[Tensor, int]:  # type: ignore[override]
        return cast(Tensor, _Taken.apply(rows.movedim(in_dims[0], 0), samples)), 0


def inputs_of(x: np.ndarray, device: str | torch.device) -> Tensor:
    """Samples [N, ...] on a device, float32; or `Streamed`, which gives float32 where rows are taken."""
    device = torch.device(device)
    if isinstance(x, Rows):
        return _kept(x, device) if _has_room(x, device) else cast(Tensor, Streamed(x, device))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to samples
        return torch.as_tensor(np.asarray(x), dtype=torch.float32).to(device)


def _has_room(x: Rows, device: torch.device) -> bool:
    return device.type == "cuda" and x.nbytes <= SHARE_OF_GPU * torch.cuda.get_device_properties(device).total_memory


def _kept(x: Rows, device: torch.device) -> Tensor:
    """All samples on a device, through the memory of one block."""
    kept = torch.empty(x.shape, device=device)
    step = max(1, (1 << 24) // max(1, x[:1].size))
    for begin in range(0, len(x), step):
        kept[begin : begin + step] = torch.as_tensor(x[begin : begin + step])
    return kept
