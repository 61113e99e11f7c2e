"""Images and masks at a smaller size: an image's pixel is the mean over its area, a mask's pixel the nearest one.

Letters: N images, H height, W width, S the new side.
"""

from __future__ import annotations

import numpy as np


def smaller_images(x: np.ndarray, size: int) -> np.ndarray:
    """Images [N, channels, H, W] as float32 [N, channels, size, size]; the mean of an image does not change."""
    if x.shape[2:] == (size, size):
        return x
    rows_SH, columns_SW = (area(n, size) for n in x.shape[2:])
    return np.stack([rows_SH @ image @ columns_SW.T for image in x]).astype(np.float32)


def smaller_masks(y: np.ndarray, size: int) -> np.ndarray:
    """Masks [N, H, W] as [N, size, size]; no new class appears."""
    rows, columns = (((np.arange(size) + 0.5) * n / size).astype(np.int64) for n in y.shape[1:])
    return np.ascontiguousarray(y[:, rows[:, None], columns])


def area(n: int, size: int) -> np.ndarray:
    """The share of each new pixel that each of n old pixels makes up, float32 [size, n]; rows sum to 1."""
    edges = np.linspace(0, n, size + 1)
    low, high = edges[:-1, None], edges[1:, None]
    pixels = np.arange(n)
    inside = np.minimum(high, pixels + 1) - np.maximum(low, pixels)
    return (np.clip(inside, 0, None) / (high - low)).astype(np.float32)
