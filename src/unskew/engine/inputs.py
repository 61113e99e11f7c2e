"""A federation's samples as torch reads them: mapped files stay on disk, and bytes become numbers where rows are taken."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

LARGEST_BYTE = 255


@dataclass(frozen=True)
class Bytes:
    """Samples of eight bits, uint8 [N, ...]; the rows that are taken are float32, divided by 255.

    A mapped file of bytes is thus neither copied nor converted as a whole.
    """

    bytes: Tensor

    @property
    def device(self) -> torch.device:
        return self.bytes.device

    @property
    def shape(self) -> torch.Size:
        return self.bytes.shape

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, rows: Any) -> Tensor:
        return self.bytes[rows].float() / LARGEST_BYTE

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        return self.bytes.index_select(axis, rows).float() / LARGEST_BYTE


def inputs_of(x: np.ndarray, device: str | torch.device) -> Tensor:
    """Samples [N, ...] on a device: float32, or `Bytes`, which give float32 where rows are taken."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to samples
        if x.dtype == np.uint8:
            return cast(Tensor, Bytes(torch.as_tensor(np.asarray(x)).to(device)))
        return torch.as_tensor(np.asarray(x), dtype=torch.float32).to(device)
