"""Many pieces of a file, fetched from the disk at once and straight into this process (Linux, asynchronous direct reads).

What comes through the system's cache costs it pages that are found, filled, listed and given away again, for every row. Rows of
a file that the cache cannot hold gain nothing by that, so they go past it: one call asks the disk for many rows, one call waits for
them, and nothing else of the processor is needed. Whatever does not work here is simply not read, and the caller reads it otherwise.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np

Range = tuple[int, int, int]
"""(where in memory, how many bytes, where in the file)"""
Spans = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(where blocks begin in the file, how many bytes they are, where they go on their way)"""
CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""By machine, the numbers of io_setup, io_destroy, io_getevents and io_submit, for which the C library has no names."""
MOST = 256
"""Pieces that are asked for at once."""
STAGED = 4 << 20
"""Bytes that pieces take on their way, which begin and end where the disk's blocks do."""
BLOCKS = (512, 4096)
"""Bytes of a disk's block, of which the first that works is taken."""
LONGEST = 1 << 18
"""Bytes of a piece at most; longer ones gain nothing."""
REQUEST = np.dtype(
    [("tag", "<u8"), ("key", "<u4"), ("rw", "<i4"), ("operation", "<u2"), ("priority", "<i2"), ("file", "<u4"),
     ("memory", "<u8"), ("bytes", "<u8"), ("at", "<i8"), ("unused", "<u8"), ("flags", "<u4"), ("signal", "<u4")]
)  # fmt: skip
"""struct iocb of the kernel, on machines whose lowest byte comes first; operation 0 reads."""
ANSWER = np.dtype([("tag", "<u8"), ("request", "<u8"), ("got", "<i8"), ("second", "<i8")])
"""struct io_event. got: bytes that were read, or minus the number of an error."""


class Direct:
    """A file that is read past the system's cache. `block` is what its pieces are aligned to, 0 where that is impossible."""

    def __init__(self, number: int):
        """number: under which the file is open already, so that it is that one, whatever has taken its name."""
        self._file, self.block = -1, 0
        if queue() is None:
            return
        try:
            self._file = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_DIRECT)
        except OSError:  # some file systems, such as those in memory, have no other way than the cache
            return
        self.block = next((size for size in BLOCKS if _works(self._file, size)), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self.block = -1, 0

    def read(self, into: memoryview, ranges: Sequence[Range]) -> list[Range]:
        """Read ranges into their places; those that were not read are returned."""
        waiting = queue() if self.block else None
        if waiting is None or not waiting.busy.acquire(blocking=False):  # another thread is reading
            return list(ranges)
        try:
            _, count, at = np.array(ranges, np.int64).reshape(-1, 3).T
            begins = at // self.block * self.block
            sizes = -(-(at + count) // self.block) * self.block - begins
            left = [ranges[i] for i in np.flatnonzero(count > LONGEST).tolist()]
            rest = np.flatnonzero(count <= LONGEST)
            while len(rest):
                ends = np.cumsum(sizes[rest])
                part = rest[: min(MOST, int(np.searchsorted(ends, STAGED, "right")))]
                spans = begins[part], sizes[part], ends[: len(part)] - sizes[part]
                left += self._part(waiting, into, [ranges[i] for i in part.tolist()], spans)
                rest = rest[len(part) :]
            return left
        finally:
            waiting.busy.release()

    def _part(self, waiting: Queue, into: memoryview, ranges: Sequence[Range], spans: Spans) -> list[Range]:
        """Those of some ranges that were not read."""
        got = waiting.fetch(self._file, *spans)
        left, staged = list[Range](), waiting.staged
        for one, begin, place, has in zip(ranges, spans[0].tolist(), spans[2].tolist(), got.tolist()):
            where, count, at = one
            skip = at - begin
            if has < skip + count:
                left.append(one)
                continue
            into[where : where + count] = staged[place + skip : place + skip + count]
        return left


class Queue:
    """What this process asks of disks and waits for, one thread at a time. Raises OSError where the system has no such queue."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._setup, self._destroy, self._wait, self._submit = CALLS[platform.machine()]
        self.process, self.busy = os.getpid(), threading.Lock()
        self._open()
        self._memory = mmap.mmap(-1, STAGED)  # shared with forked processes, so that a disk never writes to a copy
        self.staged = memoryview(self._memory)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data

    def fetch(self, file: int, begins: np.ndarray, sizes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Bytes that were read of each piece, int64 [n]; negative for one that was not.

        begins: where in the file, sizes: bytes, places: where in `staged`, all int64 [n].
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
        while done < asked and (some := self._some(self._wait, (asked - done,) * 2, answers[done:], None)) > 0:
            done += some
        self._idle = done == asked
        got[answers["tag"][:done].astype(np.int64)] = answers["got"][:done]
        return got

    def _some(self, call: int, counts: tuple[int, ...], where: np.ndarray, *more: None) -> int:
        """How many requests were taken, or answered; negative for an error."""
        while True:
            numbers = (ctypes.c_long(count) for count in counts)
            done = int(
                self._call(ctypes.c_long(call), self._context, *numbers, ctypes.c_void_p(where.ctypes.data), *more)
            )
            if done >= 0 or ctypes.get_errno() != errno.EINTR:  # a signal that came meanwhile
                return done

    def _open(self) -> None:
        self._context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(self._setup), ctypes.c_long(MOST), ctypes.byref(self._context)):
            raise OSError(ctypes.get_errno(), "no queue for asynchronous reads")
        self._idle = True

    def _emptied(self) -> bool:
        """Whether nothing is written to memory any more of what was asked and not waited for, and there is a new queue."""
        self._call(ctypes.c_long(self._destroy), self._context)  # waits for the disk
        try:
            self._open()
        except OSError:
            return False
        return True


_queues: list[Queue | None] = []


def queue() -> Queue | None:
    """The queue of this process, one for all files; None where the system has none. A process that was forked has its own."""
    if (
        not hasattr(os, "O_DIRECT")
        or platform.machine() not in CALLS
        or sys.platform != "linux"
        or sys.maxsize >> 32 == 0
    ):
        return None
    if not _queues or (_queues[0] is not None and _queues[0].process != os.getpid()):
        _queues[:] = [_tried(Queue)]
    return _queues[0]


def _tried(make: Callable[[], Queue]) -> Queue | None:
    try:
        return make()
    except (OSError, AttributeError):  # a container may forbid it; a C library may not let it be asked for
        return None


def _works(file: int, block: int) -> bool:
    """Whether a file can be read past the cache from a multiple of this many bytes on."""
    with mmap.mmap(-1, 2 * 4096) as memory, memoryview(memory)[block : 2 * block] as part:
        try:
            return os.preadv(file, [part], block) >= 0
        except OSError:
            return False
