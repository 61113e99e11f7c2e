"""Sheets of small images as PNG in base64, as pages and JSON files hold them.

Letters: C channels, H, W, N images.
"""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from torch import Tensor


def row(x_NCHW: Tensor, columns: int) -> np.ndarray:
    """[H, columns * W, C + 1] in 0..255, transparent where there are fewer images."""
    levels = (255 * x_NCHW.clamp(0, 1)).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    opaque = np.concatenate([levels, np.full_like(levels[..., :1], 255)], axis=-1)
    missing = np.zeros((columns - len(opaque), *opaque.shape[1:]), dtype=np.uint8)
    return np.concatenate([*opaque, *missing], axis=1)


def png(sheet_HWC: np.ndarray) -> str:
    """The picture as base64."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(sheet_HWC).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
