"""A user's values as the arrays that a Dataset holds: samples as float32, labels as whole numbers, masks as bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unskew.errors import DataError

LARGE = 1 << 30
"""Bytes of a memory-mapped file above which nothing of it is copied into memory."""


def array_of(values: Any) -> np.ndarray:
    """An array from an array, a tensor on any device, or a list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def samples(x: Any, name: str) -> np.ndarray:
    """float32 [N, ...]; uint8 is divided by 255. A file that is mapped as float32 stays mapped.

    x: an array, a tensor or the path of a .npy file; name: of the set, for the message.
    Raises DataError: E403 for what is no array of numbers, E401 and E402 for the file.
    """
    x = _mapped(Path(x)) if isinstance(x, str | Path) else array_of(x)
    if not x.ndim or not (np.issubdtype(x.dtype, np.number) or x.dtype == bool) or np.iscomplexobj(x):
        raise DataError("E403", f"{name}: x is {x.dtype} {list(x.shape)}; it must be numbers [N, ...], channels first.")
    if x.dtype == np.float32:
        return x
    if isinstance(x, np.memmap) and x.nbytes > LARGE:
        raise DataError(
            "E403",
            f"{name}: a memory-mapped file of {x.nbytes:,} bytes is not converted; save it as float32, not {x.dtype}.",
        )
    x = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)
    return np.asarray(x)


def labels(y: Any, name: str, x: np.ndarray) -> np.ndarray:
    """int64 [N], or masks as `as_masks` gives them. x: the samples that they belong to.

    Raises DataError (E404) for what is neither whole numbers nor of a fitting shape.
    """
    y = array_of(y)
    whole = np.issubdtype(y.dtype, np.integer) or (y.dtype == bool and y.ndim > 1)
    if y.size and (not whole or y.ndim not in (1, x.ndim - 1, x.ndim)):
        raise DataError(
            "E404",
            f"{name}: labels are {y.dtype} {list(y.shape)}; they must be whole numbers from 0, [N], or masks [N, H, W].",
        )
    if y.ndim == 1 or not y.size:
        return y.astype(np.int64)
    return as_masks(y.squeeze(1) if y.ndim == x.ndim and y.shape[1] == 1 else y)


def as_masks(y: np.ndarray) -> np.ndarray:
    """Masks as uint8, or int64 above 256 classes. Masks drawn in black and white, 0 and 255, become 0 and 1."""
    if y.max() == 255 and np.isin(y, (0, 255)).all():
        y = y == 255
    return y.astype(np.int64 if y.min() < 0 or y.max() > 255 else np.uint8)


def unit_interval(x: np.ndarray) -> np.ndarray:
    """uint8 images [N, H, W, 3] or [N, channels, H, W] as float32 [N, channels, H, W] in [0, 1]."""
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[-1] == 3 else x
    return np.ascontiguousarray(x, dtype=np.float32) / np.float32(255)


def _mapped(path: Path) -> np.ndarray:
    """A .npy file, memory-mapped: pages are read when they are used, and writing to them does not change the file."""
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise DataError("E401", f"{path} is not a whole .npy file: {error}. Copy it again.") from error
