"""From the host to the device that trains, without making the host wait for a GPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unskew.core.trees import aligned


def on_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The same values on a device, where torch would put them. A GPU fetches them from pinned memory while the host goes on."""
    host = torch.as_tensor(values)
    if device.type != "cuda" or host.device.type == "cuda":
        return aligned(host.to(device))
    return host.contiguous().pin_memory().to(device, non_blocking=True)
