"""Ranges of a file, read by position from any thread into one piece of memory."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from unskew.data.direct import Direct
from unskew.errors import DataError

Range: TypeAlias = tuple[int, int, int]
"""(where in memory, how many bytes, where in the file)"""
POSITIONED = hasattr(os, "preadv")
"""Whether this system reads by position; where it does not, as on Windows, one thread reads at a time."""
AT_ONCE = POSITIONED and hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether this system says which bytes it would have to fetch from the disk, and fetches several ranges at once."""

LOOKED_AT = 8
"""Ranges by which it is judged whether the system holds all, or most."""
CACHED = 8
"""Of so many reads of rows that the system does not hold, one goes through its cache, so that it may come to hold them."""


class Ranges:
    """An open file, closed with this object. Raises DataError (E402) if there is none."""

    def __init__(self, path: Path, file: io.FileIO | None = None):
        """file: the one that is open already; by default the one at the path is opened."""
        try:
            self._file = file or open(path, "rb", buffering=0)  # noqa: SIM115  (closed with this object)
        except FileNotFoundError:
            raise DataError("E402", f"there is no {path}.") from None
        self._number = self._file.fileno()
        self._one_at_a_time = threading.Lock()
        self._direct, self._looks, self._past = Direct(self._number), 0, 0
        weakref.finalize(self, self._direct.close)
        weakref.finalize(self, self._file.close)

    def stamp(self) -> tuple[int, int]:
        """Length and time of the last change."""
        now = os.fstat(self._number)
        return now.st_size, now.st_mtime_ns

    def read(self, into: memoryview, ranges: Iterable[Range]) -> bool:
        """Whether the file held all these bytes, which are now in their places.

        Ranges that the system holds in memory are copied first; the disk is asked for all others together, because it serves
        many requests in little more time than one. Where most are not held, all are read past the system's cache, which costs the
        processor least. Raises OSError where the disk cannot be read.
        """
        ranges = list(ranges)
        if AT_ONCE and self._goes_past(ranges):
            ranges = self._direct.read(into, ranges)
        absent = self._absent(into, ranges) if AT_ONCE else ranges
        self._ask(absent)
        return all(self._fill(into[place : place + count], at) for place, count, at in absent)

    def fetch(self, ranges: Sequence[Range]) -> None:
        """Have the disk fetch ranges that are read soon, and go on meanwhile. Nothing is done where the system seems to hold them,
        as some of them, evenly spaced, tell."""
        held = self._held(ranges) if AT_ONCE else 1
        if held < 1 and not (self._direct.block and held < 0.5):
            self._ask(ranges)

    def _goes_past(self, ranges: Sequence[Range]) -> bool:
        """Whether to read many ranges past the system's cache, which holds fewer than half of them."""
        if not self._direct.block or len(ranges) < LOOKED_AT or self._held(ranges) >= 0.5:
            return False
        self._past += 1
        return self._past % CACHED > 0

    def _held(self, ranges: Sequence[Range]) -> float:
        """The share of ranges that the system seems to hold, as some of them, evenly spaced, tell; 1 of none.

        Others are looked at each time, because many systems begin to fetch what they are asked about.
        """
        step = max(1, len(ranges) // LOOKED_AT)
        self._looks += 1
        some = ranges[self._looks % step :: step]
        return sum(map(self._is_held, some)) / len(some) if some else 1.0

    def _ask(self, ranges: Iterable[Range]) -> None:
        for _, count, at in ranges if AT_ONCE else ():
            os.posix_fadvise(self._number, at, count, os.POSIX_FADV_WILLNEED)

    def _absent(self, into: memoryview, ranges: Iterable[Range]) -> list[Range]:
        """The ranges that the system does not hold in memory; the others are copied from there."""
        absent, preadv, number, flags = list[Range](), os.preadv, self._number, os.RWF_NOWAIT
        for one in ranges:  # this loop runs once for nearly every sample that is trained on
            place, count, at = one
            try:
                if preadv(number, (into[place : place + count],), at, flags) == count:
                    continue
            except OSError:  # most often BlockingIOError; some file systems cannot tell
                pass
            absent.append(one)
        return absent

    def _is_held(self, one: Range) -> bool:
        """Whether the system holds the first byte of a range in memory."""
        try:
            return os.preadv(self._number, (bytearray(1),), one[2], os.RWF_NOWAIT) == 1
        except OSError:
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
