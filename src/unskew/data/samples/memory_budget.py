"""The memory that samples may take; larger sets are read from disk during training."""

from __future__ import annotations

from math import prod

from unskew.data.samples.intake import Note
from unskew.system.machine import usable_memory

MEMORY_SHARE = 0.25
"""Of the memory that this process may use, what samples may take together; while a test set is held out they
take twice that."""


def fits_memory(count: int, shape: tuple[int, ...], beside: int = 0) -> bool:
    """Whether so many samples of this shape may be in memory together, as float32. beside: bytes that others
    take there."""
    return beside + float32_bytes(count, shape) <= MEMORY_SHARE * usable_memory()


def float32_bytes(count: int, shape: tuple[int, ...]) -> int:
    """Bytes of so many samples as float32."""
    return 4 * count * prod(shape)


def streaming_note(count: int, shape: tuple[int, ...], where: str = "") -> Note:
    """The note on samples that are read when they are wanted. where: from where, unless from the files that
    were given."""
    text = (
        "samples are read when they are wanted: together they would take"
        f" {float32_bytes(count, shape) / 2**30:,.1f} GiB"
    )
    return "note", f"{text} of memory{where and '; '}{where}"
