"""The samples of a .npy file, row by row.

Rows are read by position rather than through a memory map: a file that is truncated while it is in use is
then an error and does not kill the process, and memory holds only the rows that are read.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from unskew.data.storage.sample_rows import Rows, Source, as_rows, changed_error, row_blocks
from unskew.errors import DataError
from unskew.system import disk

ALIGNMENT = 64
"""Alignment of arrays in memory, in bytes."""


class NpyRows(Source):
    """The rows of an array in a file, in C order.

    offset: position of its first byte. kind: type of the numbers. full: divisor of the numbers, None to leave
    them unchanged. file: the open file, by default the one at the path. Raises DataError (E402) if there is
    none.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        kind: np.dtype[Any],
        full: int | None,
        file: IO[bytes] | None = None,
    ):
        self.path, self.offset, self.shape, self.kind, self.full = path, offset, shape, kind, full
        self.name = path.name
        self.source_dtype = kind.newbyteorder("=") if full is None else Source.source_dtype
        self.row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * kind.itemsize
        try:
            self._file = file or open(path, "rb", buffering=0)  # noqa: SIM115  (closed with this object)
        except FileNotFoundError:
            raise DataError("E402", f"there is no {path}.") from None
        self._stamp = self._file_stamp()

    def read(self, rows: np.ndarray) -> np.ndarray:
        raw = _aligned_array((len(rows), *self.shape[1:]), self.kind)
        memory = raw.reshape(-1).view(np.uint8).data
        try:
            for place, count, offset in self._ranges(rows):
                self._fill(memory[place : place + count], offset)
        except OSError as error:
            raise DataError(
                "E413", f"{self.path} cannot be read: {error.strerror}; see to its disk, and resume."
            ) from error
        if self._file_stamp() != self._stamp:
            raise changed_error(self.path, "has changed since it was checked")
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            x = raw.astype(np.float32, copy=False)
        return x if self.full is None else np.divide(x, np.float32(self.full), out=x)

    def prefetch(self, rows: np.ndarray) -> None:
        if hasattr(os, "posix_fadvise"):
            for _, count, offset in self._ranges(rows):
                os.posix_fadvise(self._file.fileno(), offset, count, os.POSIX_FADV_WILLNEED)

    def _file_stamp(self) -> tuple[int, int]:
        """Size of the file and time of its last change."""
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _ranges(self, rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """(position in memory, number of bytes, position in the file) of rows, in the order of the file,
        which a disk serves fastest; adjacent rows are joined."""
        if not len(rows):
            return iter(())
        places, size = np.argsort(rows, kind="stable"), self.row_bytes
        rows = rows[places]
        begins = np.flatnonzero(np.r_[True, (np.diff(rows) != 1) | (np.diff(places) != 1)])
        counts = np.diff(begins, append=len(rows)) * size
        return zip(
            (places[begins] * size).tolist(), counts.tolist(), (self.offset + rows[begins] * size).tolist()
        )

    def _fill(self, memory: memoryview, offset: int) -> None:
        """Read bytes from a position on. Raises DataError (E413) if the file ends before."""
        while memory:
            count = os.preadv(self._file.fileno(), [memory], offset)
            if not count:
                raise changed_error(self.path, "is shorter than when it was checked")
            memory, offset = memory[count:], offset + count


def _aligned_array(shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
    """An empty array aligned as kernels want samples (unskew.core.trees.align), so that they need not copy
    it."""
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    return memory[skip : skip + size].view(kind).reshape(shape)


def write_rows(x: Rows, path: Path) -> None:
    """Write samples as float32 into a .npy file, block by block. Raises Paused (E203) on a full disk, and
    DataError (E413) for rows that cannot be read."""
    header = io.BytesIO()
    form = {"descr": "<f4", "fortran_order": False, "shape": x.shape}
    np.lib.format.write_array_header_1_0(header, form)
    pieces = (x[rows].reshape(-1).astype("<f4").view(np.uint8).data for rows in row_blocks(x.shape))
    disk.replace_piecewise(path, chain([header.getvalue()], pieces), x.nbytes)


def mapped_rows(x: np.ndarray, full: int | None) -> np.ndarray | None:
    """A mapped array as rows of its file; None if these do not follow one another in it, as in Fortran order,
    or if the array may have been changed in memory only. full: divisor of the numbers, None to leave them
    unchanged."""
    if not isinstance(x, np.memmap) or x.mode == "c" or x.filename is None:  # pyright: ignore[reportUnnecessaryComparison]
        return None
    if not x.flags.c_contiguous:
        return None
    mapping = np.frombuffer(x._mmap, np.uint8)  # type: ignore[attr-defined]
    begins = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY
    offset = begins + x.__array_interface__["data"][0] - mapping.__array_interface__["data"][0]
    return as_rows(NpyRows(Path(x.filename), offset, x.shape, x.dtype, full))
