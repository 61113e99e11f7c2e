"""The memory that samples may take; larger sets are read from disk during training."""

from __future__ import annotations

from math import prod

from unskew.system.machine import usable_memory

MEMORY_SHARE = 0.25
"""The share of this process's memory that samples may take together; splitting off a test set needs twice
that."""


def fits_memory(count: int, shape: tuple[int, ...], other_bytes: int = 0) -> bool:
    """Whether `count` samples of this shape fit the memory budget as float32. other_bytes: bytes that other
    samples take."""
    return other_bytes + float32_bytes(count, shape) <= MEMORY_SHARE * usable_memory()


def float32_bytes(count: int, shape: tuple[int, ...]) -> int:
    """Bytes of `count` samples of this shape as float32."""
    return 4 * count * prod(shape)
