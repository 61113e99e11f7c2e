"""Whether samples that are decoded, or handed out one at a time, are kept in memory or read when they are wanted."""

from __future__ import annotations

from math import prod

from unskew.data.intake.notes import Note
from unskew.ram import memory

SHARE = 0.25
"""Of the memory that this process may use, what samples may take together; while a test set is held out they take twice that."""


def fits(count: int, shape: tuple[int, ...], beside: int = 0) -> bool:
    """Whether so many samples of this shape may be in memory together, as float32. beside: bytes that others take there."""
    return beside + size(count, shape) <= SHARE * memory()


def size(count: int, shape: tuple[int, ...]) -> int:
    """Bytes of so many samples as float32."""
    return 4 * count * prod(shape)


def told(count: int, shape: tuple[int, ...], where: str = "") -> Note:
    """The note on samples that are read when they are wanted. where: from where, unless from the files that were given."""
    text = f"samples are read when they are wanted: together they would take {size(count, shape) / 2**30:,.1f} GiB"
    return "note", f"{text} of memory{where and '; '}{where}"
