"""Samples in a .npy file, row by row: read by position instead of through a mapping, so that a file that was cut off while
it is used is an error and not the end of the process, and memory stays what the rows take."""

from __future__ import annotations

import io
import math
import mmap
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from unskew import disk
from unskew.data.ranges import Range, Ranges
from unskew.data.rows import Rows, Source, blocks, chosen, standing_in
from unskew.data.scattered import Scattered
from unskew.errors import DataError

ALIGNED = 64
"""Bytes of which the place of an array in memory is a multiple."""


class Stored(Source):
    """The rows of an array that lies in a file in C order.

    offset: of its first byte. kind: of its numbers. full: what they are divided by, None where they are taken as they are.
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, ...], kind: np.dtype[Any], full: int | None):
        self._lies(path, offset, shape, kind, full)
        self._file = Ranges(path)
        self._stamp = self._file.stamp()

    @classmethod
    def opened(cls, file: io.FileIO, shape: tuple[int, ...], name: str) -> Stored:
        """The rows of float32 in an open file that has no name of its own. name: what it is called in messages."""
        self = cls.__new__(cls)
        self._lies(Path(f"the copy of {name}"), 0, shape, np.dtype("<f4"), None)
        self._file = Ranges(self.path, file)
        self._stamp = self._file.stamp()
        return self

    def _lies(self, path: Path, offset: int, shape: tuple[int, ...], kind: np.dtype[Any], full: int | None) -> None:
        self.path, self.offset, self.shape, self.kind, self.full = path, offset, shape, kind, full
        self.name, self.came = path.name, kind.newbyteorder("=") if full is None else Source.came
        self.row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * kind.itemsize

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._file = Ranges(self.path)

    def read(self, rows: np.ndarray) -> np.ndarray:
        raw = _empty((len(rows), *self.shape[1:]), self.kind)
        try:
            whole = self._file.read(raw.reshape(-1).view(np.uint8).data, self._ranges(rows))
        except OSError as error:
            raise DataError(
                "E413", f"{self.path} cannot be read: {error.strerror}; see to its disk, and resume."
            ) from error
        if not whole:
            raise self._altered("is shorter than when it was checked")
        if self._file.stamp() != self._stamp:
            raise self._altered("has changed since it was checked")
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            x = raw.astype(np.float32, copy=False)
        return x if self.full is None else np.divide(x, np.float32(self.full), out=x)

    def coming(self, rows: np.ndarray) -> None:
        self._file.fetch(list(self._ranges(rows)))

    def _ranges(self, rows: np.ndarray) -> Iterator[Range]:
        """Where rows go and lie, in the order of the file, which a disk serves fastest; those side by side in both are one."""
        if not len(rows):
            return iter(())
        places, size = np.argsort(rows, kind="stable"), self.row_bytes
        rows = rows[places]
        begins = np.flatnonzero(np.r_[True, (np.diff(rows) != 1) | (np.diff(places) != 1)])
        counts = np.diff(begins, append=len(rows)) * size
        return zip((places[begins] * size).tolist(), counts.tolist(), (self.offset + rows[begins] * size).tolist())

    def _altered(self, what: str) -> DataError:
        return DataError(
            "E413", f"{self.path} {what}; leave data alone while they are trained on, and start the run again."
        )


def _empty(shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
    """An array that begins where kernels want samples to begin (unskew.core.trees.aligned), so that none is copied for it."""
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = np.empty(size + ALIGNED, np.uint8)
    skip = -memory.ctypes.data % ALIGNED
    return memory[skip : skip + size].view(kind).reshape(shape)


def stored(x: np.ndarray, full: int | None) -> Source | None:
    """What reads the rows of a mapped array from its file; None for one that may have been changed in memory only."""
    if not isinstance(x, np.memmap) or x.mode == "c" or x.filename is None:  # pyright: ignore[reportUnnecessaryComparison]
        return None
    mapping = np.frombuffer(x._mmap, np.uint8)  # type: ignore[attr-defined]
    begins = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY
    offset = begins + x.__array_interface__["data"][0] - mapping.__array_interface__["data"][0]
    path = Path(x.filename)
    if x.flags.c_contiguous:
        return Stored(path, offset, x.shape, x.dtype, full)
    return Scattered(path, offset, x.strides, shape=x.shape, kind=x.dtype, full=full)


def lies_as_used(x: Rows) -> bool:
    """Whether samples lie in a file as they are used."""
    return isinstance(x.source, Stored) and x.unchanged


def laid_down(x: Rows, path: Path) -> dict[str, Any]:
    """Put samples at this path, by a link to their own file, or written as float32, block by block; how they lie there, as JSON.

    The facts name no file, because they may come from anybody. Raises Paused (E203) on a full disk, and DataError (E413) for
    rows that cannot be read.
    """
    if lies_as_used(x):
        source = x.source
        assert isinstance(source, Stored)
        if disk.linked(path, source.path):
            return {
                "offset": source.offset,
                "kind": source.kind.str,
                "full": source.full,
                "shape": list(source.shape),
            }
        x = Rows(source)  # whoever picks them up chooses from all rows
    header = io.BytesIO()
    form = {"descr": "<f4", "fortran_order": False, "shape": x.shape}
    np.lib.format.write_array_header_1_0(header, form)
    pieces = (x[rows].reshape(-1).astype("<f4").view(np.uint8).data for rows in blocks(x.shape))
    disk.replace_piecewise(path, chain([header.getvalue()], pieces), x.nbytes)
    return {"offset": header.tell(), "kind": "<f4", "full": None, "shape": list(x.shape)}


def picked_up(facts: Mapping[str, Any], path: Path, rows: np.ndarray | None) -> np.ndarray:
    """The samples that lie at this path as `laid_down` says. rows: which of them; None for all.

    Raises DataError (E402) if the file is gone, and KeyError, TypeError or ValueError for facts that `laid_down` does not write.
    """
    kind, shape, offset, full = np.dtype(str(facts["kind"])), tuple(facts["shape"]), facts["offset"], facts["full"]
    if kind.kind not in "biuf" or kind.subdtype or not shape:
        raise ValueError(f"samples of {kind}")
    if any(type(n) is not int or n < 0 for n in (*shape, offset)) or type(full) not in (int, type(None)) or full == 0:
        raise ValueError("samples of no shape")
    place = path.resolve()
    if place.exists() and (not place.is_file() or offset + math.prod(shape) * kind.itemsize > place.stat().st_size):
        raise ValueError(f"{path.name} is shorter than its samples")
    x = standing_in(Stored(place, offset, shape, kind, full))
    return x if rows is None else chosen(x, rows)
