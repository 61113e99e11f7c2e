"""Ranges of a file, read by position from any thread into one piece of memory."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from unskew.errors import DataError

Range: TypeAlias = tuple[int, int, int]
"""(where in memory, how many bytes, where in the file)"""
POSITIONED = hasattr(os, "preadv")
"""Whether this system reads by position; where it does not, as on Windows, one thread reads at a time."""
AT_ONCE = POSITIONED and hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether this system says which bytes it would have to fetch from the disk, and fetches several ranges at once."""


class Ranges:
    """An open file, closed with this object. Raises DataError (E402) if there is none."""

    def __init__(self, path: Path):
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed with this object)
        except FileNotFoundError:
            raise DataError("E402", f"there is no {path}.") from None
        self._number = self._file.fileno()
        self._one_at_a_time = threading.Lock()
        weakref.finalize(self, self._file.close)

    def stamp(self) -> tuple[int, int]:
        """Length and time of the last change."""
        now = os.fstat(self._number)
        return now.st_size, now.st_mtime_ns

    def read(self, into: memoryview, ranges: Iterable[Range]) -> bool:
        """Whether the file held all these bytes, which are now in their places.

        Ranges that the system holds in memory are copied first; the disk is asked for all others together, because it serves
        many requests in little more time than one. Raises OSError where the disk cannot be read.
        """
        absent = [one for one in ranges if not self._held(into, one)] if AT_ONCE else list(ranges)
        for _, count, at in absent if AT_ONCE else ():
            os.posix_fadvise(self._number, at, count, os.POSIX_FADV_WILLNEED)
        return all(self._fill(into[place : place + count], at) for place, count, at in absent)

    def _held(self, into: memoryview, one: Range) -> bool:
        """Whether the system held the range in memory, from where it was copied."""
        place, count, at = one
        try:
            return os.preadv(self._number, [into[place : place + count]], at, os.RWF_NOWAIT) == count
        except OSError:  # most often BlockingIOError; some file systems cannot tell
            return False

    def _fill(self, into: memoryview, at: int) -> bool:
        """Read bytes from this place on; False where the file ends before."""
        done = 0
        while done < len(into):
            got = self._read_at(into[done:], at + done)
            if not got:
                return False
            done += got
        return True

    def _read_at(self, into: memoryview, at: int) -> int:
        """How many bytes were read from this place on, 0 at the end of the file."""
        if POSITIONED:
            return os.preadv(self._number, [into], at)
        with self._one_at_a_time:
            self._file.seek(at)
            return self._file.readinto(into) or 0
