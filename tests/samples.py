"""What is tried of many alike: `make test` a part of them, `make matrix` all.

The number of methods grows, and each of some tests is made of every method. What one of them does wrong,
others with the same hooks mostly do, too; so a part of the methods is tried each time, and all before a
release and by night.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

EVERYTHING = os.environ.get("UNSKEW_MATRIX") == "all"
"""Whether nothing is left out."""


def turn(name: str, turns: int) -> int:
    """Which of so many turns a name has, always the same one."""
    return zlib.crc32(name.encode()) % turns


def a_part_of(names: Iterable[str], one_of: int, always: Iterable[str] = ()) -> list[str]:
    """About one of so many names, and those that are tried always; all of them where nothing is left out."""
    kept = set(always)
    return [name for name in names if EVERYTHING or name in kept or turn(name, one_of) == 0]
