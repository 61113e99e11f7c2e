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
ANSWER = np.dtype([("tag", "<u8"), ("request", "<u8"), ("result", "<i8"), ("second", "<i8")])
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
        except OSError:  # some file systems, such as those in memory, can only be read through the cache
            return
        self.block = next((size for size in BLOCK_SIZES if _reads_direct(self._file, size)), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self.block = -1, 0

    def read(self, into: memoryview, ranges: Sequence[ByteRange]) -> list[ByteRange]:
        """Read ranges into memory; returns those that were not read."""
        queue = read_queue() if self.block else None
        if queue is None or not queue.busy.acquire(blocking=False):  # another thread is reading
            return list(ranges)
        try:
            _, count, offset = np.array(ranges, np.int64).reshape(-1, 3).T
            begins = offset // self.block * self.block
            sizes = -(-(offset + count) // self.block) * self.block - begins
            unread = [ranges[i] for i in np.flatnonzero(count > LONGEST_RANGE).tolist()]
            pending = np.flatnonzero(count <= LONGEST_RANGE)
            while len(pending):
                ends = np.cumsum(sizes[pending])
                part = pending[: min(QUEUE_LENGTH, int(np.searchsorted(ends, STAGING_BYTES, "right")))]
                spans = begins[part], sizes[part], ends[: len(part)] - sizes[part]
                unread += self._read_part(queue, into, [ranges[i] for i in part.tolist()], spans)
                pending = pending[len(part) :]
            return unread
        finally:
            queue.busy.release()

    def _read_part(
        self, queue: ReadQueue, into: memoryview, ranges: Sequence[ByteRange], spans: BlockSpans
    ) -> list[ByteRange]:
        """Read some ranges through the staging buffer; returns those that were not read."""
        lengths = queue.fetch(self._file, *spans)
        unread, staged = list[ByteRange](), queue.staged
        for item, begin, place, length in zip(ranges, spans[0].tolist(), spans[2].tolist(), lengths.tolist()):
            target, count, offset = item
            skip = offset - begin
            if length < skip + count:
                unread.append(item)
                continue
            into[target : target + count] = staged[place + skip : place + skip + count]
        return unread


class ReadQueue:
    """The kernel's queue of this process's asynchronous reads, used by one thread at a time. Raises
    OSError if the system has no such queue."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._setup, self._destroy, self._wait, self._submit = SYSTEM_CALLS[platform.machine()]
        self.process, self.busy = os.getpid(), threading.Lock()
        self._open()
        # shared with forked processes, so that a disk never writes to a copy
        self._memory = mmap.mmap(-1, STAGING_BYTES)
        self.staged = memoryview(self._memory)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data

    def fetch(self, file: int, begins: np.ndarray, sizes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Number of bytes read of each block span, int64 [n]; negative for a failed one.

        begins: positions in the file. sizes: in bytes. places: positions in `staged`. All are int64 [n].
        """
        n, lengths = len(places), np.full(len(places), -1, np.int64)
        if not self._idle and not self._reopen():
            return lengths
        requests, answers = np.zeros(n, REQUEST), np.zeros(n, ANSWER)
        requests["tag"], requests["file"], requests["memory"] = np.arange(n), file, self._address + places
        requests["at"], requests["bytes"] = begins, sizes
        pointers = requests.ctypes.data + REQUEST.itemsize * np.arange(n, dtype=np.uint64)
        submitted = completed = 0
        self._idle = False
        while (
            submitted < n
            and (count := self._call_queue(self._submit, (n - submitted,), pointers[submitted:])) > 0
        ):
            submitted += count
        while (
            completed < submitted
            and (
                count := self._call_queue(self._wait, (submitted - completed,) * 2, answers[completed:], None)
            )
            > 0
        ):
            completed += count
        self._idle = completed == submitted
        lengths[answers["tag"][:completed].astype(np.int64)] = answers["result"][:completed]
        return lengths

    def _call_queue(self, call: int, counts: tuple[int, ...], buffer: np.ndarray, *more: None) -> int:
        """The number of requests that were accepted or completed; negative for an error."""
        while True:
            numbers = (ctypes.c_long(count) for count in counts)
            result = int(
                self._call(
                    ctypes.c_long(call), self._context, *numbers, ctypes.c_void_p(buffer.ctypes.data), *more
                )
            )
            if (
                result >= 0 or ctypes.get_errno() != errno.EINTR
            ):  # repeat a call that a signal has interrupted
                return result

    def _open(self) -> None:
        self._context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(self._setup), ctypes.c_long(QUEUE_LENGTH), ctypes.byref(self._context)):
            raise OSError(ctypes.get_errno(), "no queue for asynchronous reads")
        self._idle = True

    def _reopen(self) -> bool:
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
    except (OSError, AttributeError):  # a container or a C library may forbid the call
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
        self._direct, self._probes, self._direct_reads = DirectFile(self._number), 0, 0
        weakref.finalize(self, self._direct.close)
        weakref.finalize(self, self._file.close)

    def stamp(self) -> tuple[int, int]:
        """Size of the file and time of its last change."""
        status = os.fstat(self._number)
        return status.st_size, status.st_mtime_ns

    def read(self, into: memoryview, ranges: Iterable[ByteRange]) -> bool:
        """Read ranges into memory; False if the file is too short for them.

        Cached ranges are copied first; all others are requested from the disk together, because it serves
        many requests in little more time than one. If most are not cached, all are read directly, which costs
        the processor least. Raises OSError if the disk cannot be read.
        """
        ranges = list(ranges)
        if AT_ONCE and self._reads_directly(ranges):
            ranges = self._direct.read(into, ranges)
        absent = self._uncached(into, ranges) if AT_ONCE else ranges
        self._prefetch(absent)
        return all(self._fill(into[place : place + count], offset) for place, count, offset in absent)

    def fetch(self, ranges: Sequence[ByteRange]) -> None:
        """Ask the disk to prefetch ranges, without waiting for it. Nothing is done if the ranges seem to
        be cached."""
        share = self._cached_share(ranges) if AT_ONCE else 1
        if share < 1 and not (self._direct.block and share < 0.5):
            self._prefetch(ranges)

    def _reads_directly(self, ranges: Sequence[ByteRange]) -> bool:
        """Whether to read these ranges directly: there are many, and fewer than half are cached."""
        if not self._direct.block or len(ranges) < RANGES_PROBED or self._cached_share(ranges) >= 0.5:
            return False
        self._direct_reads += 1
        return self._direct_reads % CACHE_TURN > 0

    def _cached_share(self, ranges: Sequence[ByteRange]) -> float:
        """The estimated share of cached ranges, from evenly spaced ones; 1 without ranges.

        Each call probes different ones, because many systems begin to fetch the ranges that they are asked
        about.
        """
        step = max(1, len(ranges) // RANGES_PROBED)
        self._probes += 1
        probes = ranges[self._probes % step :: step]
        return sum(map(self._is_cached, probes)) / len(probes) if probes else 1.0

    def _prefetch(self, ranges: Iterable[ByteRange]) -> None:
        for _, count, offset in ranges if AT_ONCE else ():
            os.posix_fadvise(self._number, offset, count, os.POSIX_FADV_WILLNEED)

    def _uncached(self, into: memoryview, ranges: Iterable[ByteRange]) -> list[ByteRange]:
        """The ranges that are not cached; the others are copied from the cache."""
        absent, preadv, number, flags = list[ByteRange](), os.preadv, self._number, os.RWF_NOWAIT
        for item in ranges:  # this loop runs once for nearly every sample that is trained on
            place, count, offset = item
            try:
                if preadv(number, (into[place : place + count],), offset, flags) == count:
                    continue
            except OSError:  # most often BlockingIOError; some file systems cannot tell
                pass
            absent.append(item)
        return absent

    def _is_cached(self, item: ByteRange) -> bool:
        """Whether the first byte of a range is cached."""
        try:
            return os.preadv(self._number, (bytearray(1),), item[2], os.RWF_NOWAIT) == 1
        except OSError:
            return False

    def _fill(self, into: memoryview, offset: int) -> bool:
        """Read bytes from a position on; False if the file ends too early."""
        length = 0
        while length < len(into):
            count = self._read_at(into[length:], offset + length)
            if not count:
                return False
            length += count
        return True

    def _read_at(self, into: memoryview, offset: int) -> int:
        """Number of bytes read from a position on, 0 at the end of the file."""
        if POSITIONED:
            return os.preadv(self._number, [into], offset)
        with self._one_at_a_time:
            self._file.seek(offset)
            return self._file.readinto(into) or 0
