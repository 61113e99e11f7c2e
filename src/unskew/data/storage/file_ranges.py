"""Ranges of bytes of a file, read by position from any thread into one piece of memory.

Ranges that the operating system has cached are copied. If most are not cached, the rest is read with Linux's
asynchronous direct reads, which bypass the cache: a file that is larger than memory gains nothing from the
cache, and one system call requests many ranges. If direct reads are unavailable, the ranges are read in the
ordinary way.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from unskew.errors import DataError

ByteRange = tuple[int, int, int]
"""(position in memory, number of bytes, position in the file)"""
BlockSpans = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(positions of blocks in the file, their sizes in bytes, their positions in the staging buffer)"""
SYSTEM_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of io_setup, io_destroy, io_getevents and io_submit by machine; the C library has no
functions for them."""
QUEUE_LENGTH = 256
"""Maximal number of ranges requested at a time."""
STAGING_BYTES = 4 << 20
"""Size of the staging buffer, in which ranges begin and end at the disk's blocks."""
BLOCK_SIZES = (512, 4096)
"""Possible sizes of a disk's block, in bytes; the first that works is used."""
LONGEST_RANGE = 1 << 18
"""Maximal size of a directly read range, in bytes; longer ones gain nothing."""
REQUEST = np.dtype(
    [
        ("tag", "<u8"),
        ("key", "<u4"),
        ("rw", "<i4"),
        ("operation", "<u2"),
        ("priority", "<i2"),
        ("file", "<u4"),
        ("memory", "<u8"),
        ("bytes", "<u8"),
        ("at", "<i8"),
        ("unused", "<u8"),
        ("flags", "<u4"),
        ("signal", "<u4"),
    ]
)
"""The kernel's struct iocb on little-endian machines; operation 0 reads."""
ANSWER = np.dtype([("tag", "<u8"), ("request", "<u8"), ("got", "<i8"), ("second", "<i8")])
"""The kernel's struct io_event. result: number of bytes read, or the negative number of an error."""


class DirectFile:
    """A file that is read without the system's cache. `block`: alignment of its ranges in bytes, 0 if such
    reads are impossible."""

    def __init__(self, number: int):
        """number: descriptor of the open file, which stays valid if another file takes its name."""
        self._file, self.block = -1, 0
        if read_queue() is None:
            return
        try:
            self._file = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_DIRECT)
        except OSError:  # some file systems, such as those in memory, have no other way than the cache
            return
        self.block = next((size for size in BLOCK_SIZES if _reads_direct(self._file, size)), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self.block = -1, 0

    def read(self, into: memoryview, ranges: Sequence[ByteRange]) -> list[ByteRange]:
        """Read ranges into memory; returns those that were not read."""
        waiting = read_queue() if self.block else None
        if waiting is None or not waiting.busy.acquire(blocking=False):  # another thread is reading
            return list(ranges)
        try:
            _, count, at = np.array(ranges, np.int64).reshape(-1, 3).T
            begins = at // self.block * self.block
            sizes = -(-(at + count) // self.block) * self.block - begins
            left = [ranges[i] for i in np.flatnonzero(count > LONGEST_RANGE).tolist()]
            rest = np.flatnonzero(count <= LONGEST_RANGE)
            while len(rest):
                ends = np.cumsum(sizes[rest])
                part = rest[: min(QUEUE_LENGTH, int(np.searchsorted(ends, STAGING_BYTES, "right")))]
                spans = begins[part], sizes[part], ends[: len(part)] - sizes[part]
                left += self._part(waiting, into, [ranges[i] for i in part.tolist()], spans)
                rest = rest[len(part) :]
            return left
        finally:
            waiting.busy.release()

    def _part(
        self, waiting: ReadQueue, into: memoryview, ranges: Sequence[ByteRange], spans: BlockSpans
    ) -> list[ByteRange]:
        """Read some ranges through the staging buffer; returns those that were not read."""
        got = waiting.fetch(self._file, *spans)
        left, staged = list[ByteRange](), waiting.staged
        for one, begin, place, has in zip(ranges, spans[0].tolist(), spans[2].tolist(), got.tolist()):
            where, count, at = one
            skip = at - begin
            if has < skip + count:
                left.append(one)
                continue
            into[where : where + count] = staged[place + skip : place + skip + count]
        return left


class ReadQueue:
    """The kernel's queue of this process's asynchronous reads, used by one thread at a time. Raises
    OSError if the system has no such queue."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._setup, self._destroy, self._wait, self._submit = SYSTEM_CALLS[platform.machine()]
        self.process, self.busy = os.getpid(), threading.Lock()
        self._open()
        self._memory = mmap.mmap(
            -1, STAGING_BYTES
        )  # shared with forked processes, so that a disk never writes to a copy
        self.staged = memoryview(self._memory)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data

    def fetch(self, file: int, begins: np.ndarray, sizes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Number of bytes read of each block span, int64 [n]; negative for a failed one.

        begins: positions in the file. sizes: in bytes. places: positions in `staged`. All are int64 [n].
        """
        n, got = len(places), np.full(len(places), -1, np.int64)
        if not self._idle and not self._emptied():
            return got
        requests, answers = np.zeros(n, REQUEST), np.zeros(n, ANSWER)
        requests["tag"], requests["file"], requests["memory"] = np.arange(n), file, self._address + places
        requests["at"], requests["bytes"] = begins, sizes
        pointers = requests.ctypes.data + REQUEST.itemsize * np.arange(n, dtype=np.uint64)
        asked = done = 0
        self._idle = False
        while asked < n and (some := self._some(self._submit, (n - asked,), pointers[asked:])) > 0:
            asked += some
        while (
            done < asked and (some := self._some(self._wait, (asked - done,) * 2, answers[done:], None)) > 0
        ):
            done += some
        self._idle = done == asked
        got[answers["tag"][:done].astype(np.int64)] = answers["got"][:done]
        return got

    def _some(self, call: int, counts: tuple[int, ...], where: np.ndarray, *more: None) -> int:
        """The number of requests that were accepted or completed; negative for an error."""
        while True:
            numbers = (ctypes.c_long(count) for count in counts)
            done = int(
                self._call(
                    ctypes.c_long(call), self._context, *numbers, ctypes.c_void_p(where.ctypes.data), *more
                )
            )
            if done >= 0 or ctypes.get_errno() != errno.EINTR:  # a signal that came meanwhile
                return done

    def _open(self) -> None:
        self._context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(self._setup), ctypes.c_long(QUEUE_LENGTH), ctypes.byref(self._context)):
            raise OSError(ctypes.get_errno(), "no queue for asynchronous reads")
        self._idle = True

    def _emptied(self) -> bool:
        """Wait until no pending request writes to memory, and open a new queue; False if that fails."""
        self._call(ctypes.c_long(self._destroy), self._context)  # waits for the disk
        try:
            self._open()
        except OSError:
            return False
        return True


_read_queues: list[ReadQueue | None] = []


def read_queue() -> ReadQueue | None:
    """The queue of this process, shared by all files; None if the system has none. A forked process gets a
    new one."""
    if (
        not hasattr(os, "O_DIRECT")
        or platform.machine() not in SYSTEM_CALLS
        or sys.platform != "linux"
        or sys.maxsize >> 32 == 0
    ):
        return None
    if not _read_queues or (_read_queues[0] is not None and _read_queues[0].process != os.getpid()):
        _read_queues[:] = [_new_queue(ReadQueue)]
    return _read_queues[0]


def _new_queue(make: Callable[[], ReadQueue]) -> ReadQueue | None:
    try:
        return make()
    except (OSError, AttributeError):  # a container may forbid it; a C library may not let it be asked for
        return None


def _reads_direct(file: int, block: int) -> bool:
    """Whether a file can be read without the cache at multiples of this block size."""
    with mmap.mmap(-1, 2 * 4096) as memory, memoryview(memory)[block : 2 * block] as part:
        try:
            return os.preadv(file, [part], block) >= 0
        except OSError:
            return False


POSITIONED = hasattr(os, "preadv")
"""Whether this system can read by position; if not, as on Windows, one thread reads at a time."""
AT_ONCE = POSITIONED and hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether this system can report uncached bytes and fetch several ranges at once."""

RANGES_PROBED = 8
"""Number of ranges from which the cached share is estimated."""
CACHE_TURN = 8
"""One in this many reads of uncached rows goes through the cache, so that it may come to hold them."""


class RangeFile:
    """An open file, closed with this object. Raises DataError (E402) if there is none."""

    def __init__(self, path: Path, file: io.FileIO | None = None):
        """file: an open file; by default the one at the path is opened."""
        try:
            self._file = file or open(path, "rb", buffering=0)  # noqa: SIM115  (closed with this object)
        except FileNotFoundError:
            raise DataError("E402", f"there is no {path}.") from None
        self._number = self._file.fileno()
        self._one_at_a_time = threading.Lock()
        self._direct, self._looks, self._past = DirectFile(self._number), 0, 0
        weakref.finalize(self, self._direct.close)
        weakref.finalize(self, self._file.close)

    def stamp(self) -> tuple[int, int]:
        """Size of the file and time of its last change."""
        now = os.fstat(self._number)
        return now.st_size, now.st_mtime_ns

    def read(self, into: memoryview, ranges: Iterable[ByteRange]) -> bool:
        """Read ranges into memory; False if the file is too short for them.

        Cached ranges are copied first; all others are requested from the disk together, because it serves
        many requests in little more time than one. If most are not cached, all are read directly, which costs
        the processor least. Raises OSError if the disk cannot be read.
        """
        ranges = list(ranges)
        if AT_ONCE and self._goes_past(ranges):
            ranges = self._direct.read(into, ranges)
        absent = self._absent(into, ranges) if AT_ONCE else ranges
        self._ask(absent)
        return all(self._fill(into[place : place + count], at) for place, count, at in absent)

    def fetch(self, ranges: Sequence[ByteRange]) -> None:
        """Ask the disk to prefetch ranges, without waiting for it. Nothing is done if the ranges seem to
        be cached."""
        held = self._held(ranges) if AT_ONCE else 1
        if held < 1 and not (self._direct.block and held < 0.5):
            self._ask(ranges)

    def _goes_past(self, ranges: Sequence[ByteRange]) -> bool:
        """Whether to read these ranges directly: there are many, and fewer than half are cached."""
        if not self._direct.block or len(ranges) < RANGES_PROBED or self._held(ranges) >= 0.5:
            return False
        self._past += 1
        return self._past % CACHE_TURN > 0

    def _held(self, ranges: Sequence[ByteRange]) -> float:
        """The estimated share of cached ranges, from evenly spaced ones; 1 without ranges.

        Each call probes different ones, because many systems begin to fetch the ranges that they are asked
        about.
        """
        step = max(1, len(ranges) // RANGES_PROBED)
        self._looks += 1
        some = ranges[self._looks % step :: step]
        return sum(map(self._is_held, some)) / len(some) if some else 1.0

    def _ask(self, ranges: Iterable[ByteRange]) -> None:
        for _, count, at in ranges if AT_ONCE else ():
            os.posix_fadvise(self._number, at, count, os.POSIX_FADV_WILLNEED)

    def _absent(self, into: memoryview, ranges: Iterable[ByteRange]) -> list[ByteRange]:
        """The ranges that are not cached; the others are copied from the cache."""
        absent, preadv, number, flags = list[ByteRange](), os.preadv, self._number, os.RWF_NOWAIT
        for one in ranges:  # this loop runs once for nearly every sample that is trained on
            place, count, at = one
            try:
                if preadv(number, (into[place : place + count],), at, flags) == count:
                    continue
            except OSError:  # most often BlockingIOError; some file systems cannot tell
                pass
            absent.append(one)
        return absent

    def _is_held(self, one: ByteRange) -> bool:
        """Whether the first byte of a range is cached."""
        try:
            return os.preadv(self._number, (bytearray(1),), one[2], os.RWF_NOWAIT) == 1
        except OSError:
            return False

    def _fill(self, into: memoryview, at: int) -> bool:
        """Read bytes from a position on; False if the file ends too early."""
        done = 0
        while done < len(into):
            got = self._read_at(into[done:], at + done)
            if not got:
                return False
            done += got
        return True

    def _read_at(self, into: memoryview, at: int) -> int:
        """Number of bytes read from a position on, 0 at the end of the file."""
        if POSITIONED:
            return os.preadv(self._number, [into], at)
        with self._one_at_a_time:
            self._file.seek(at)
            return self._file.readinto(into) or 0
