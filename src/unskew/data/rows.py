"""Samples that stay where they lie and are read when they are wanted: a set that is larger than memory.

`Rows` stands where an array of samples would: it has a shape, gives an array for every index, and knows by heart which of
the source's rows it is made of and what is done to each. Whoever needs a part of it as such asks for it with `chosen`.
Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast
from zlib import crc32

import numpy as np

from unskew.errors import DataError

BLOCK = 1 << 22
"""Values that are read at once in a pass over all samples."""
SUMMED = 1 << 24
"""Values that are summed at once where channels are measured; the sums' last bits follow from it."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What a pass over all rows of a source found. crc: of each row's bytes, uint32 [N]. low, high: each row's smallest and
    largest value, float32 [N]; NaN in a row that holds one."""

    crc: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Source:
    """Where samples lie. name: what it is called in messages. shape: [N, ...].

    Subclasses read rows; a row that is not what it was when the source was opened is an error, never another sample.
    """

    name: str
    shape: tuple[int, ...]
    together: int | None = None
    """Bytes of samples that are read at once for training, where a read costs much whatever it brings; None where it does not."""
    came: np.dtype[Any] = np.dtype(np.float32)
    """The type of the numbers where they lie, of those that are read as they are; float32 of those that are scaled."""

    def read(self, rows: np.ndarray) -> np.ndarray:
        """These rows, int64 [n], as float32 [n, ...]; from any thread. Raises DataError (E413) for rows that cannot be read."""
        raise NotImplementedError

    def coming(self, rows: np.ndarray) -> None:
        """Rows that are read next, which a disk may fetch meanwhile; from any thread. Nothing is raised."""

    @cached_property
    def survey(self) -> Survey:
        """One pass over all rows, made once."""
        return surveyed(self.shape, self.read)


def surveyed(shape: tuple[int, ...], read: Callable[[np.ndarray], np.ndarray]) -> Survey:
    """One pass over all samples of this shape. read: gives the samples at these numbers."""
    parts = [_found(read(rows)) for rows in blocks(shape)]
    return Survey(*(np.concatenate(values) for values in zip(*parts)))


def checksums(x: np.ndarray) -> np.ndarray:
    """Of each sample's bytes, uint32 [N]; equal ones may still differ."""
    return np.fromiter((crc32(np.ascontiguousarray(row).data) for row in x), np.uint32, len(x))


def _found(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(crc, low, high) of samples [n, ...], as `Survey` holds them."""
    flat = x.reshape(len(x), -1)
    return checksums(x), flat.min(1), flat.max(1)


def blocks(shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The rows of samples of this shape, in blocks."""
    step = max(1, BLOCK // max(1, int(np.prod(shape[1:]))))
    for begin in range(0, shape[0], step):
        yield np.arange(begin, min(begin + step, shape[0]))


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of every channel of samples [N, channels, ...], float64 [channels].

    Summed block by block, so that samples in memory and others give the same bits.
    """
    axes, step = (0, *range(2, x.ndim)), max(1, SUMMED // max(1, int(np.prod(x.shape[1:]))))
    starts, count = range(0, len(x), step), x.shape[0] * int(np.prod(x.shape[2:]))
    mean = sum(x[i : i + step].sum(axes, dtype=np.float64, keepdims=True) for i in starts) / count
    squares = sum(np.square(x[i : i + step] - mean).sum(axes, dtype=np.float64) for i in starts)
    return np.reshape(mean, -1), np.sqrt(squares / count)


@dataclass(frozen=True, eq=False)
class Rows:
    """rows: which of the source's, int64 [N]; None for all. changes: what is done to rows that were read, in this order."""

    source: Source
    rows: np.ndarray | None = None
    changes: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()

    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape if self.rows is None else (len(self.rows), *self.source.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.source.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the samples would take in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """The samples at a number, a slice or an array of numbers or truth values, read now; of a number the sample itself."""
        rows = _numbers(index, len(self)) if self.rows is None else self.rows[index]
        x = self.source.read(np.atleast_1d(rows).astype(np.int64, copy=False))
        for change in self.changes:
            x = change(x)
        return x if np.ndim(rows) else x[0]

    def coming(self, rows: np.ndarray) -> None:
        """The samples at these numbers are read next, so that a disk may fetch them meanwhile."""
        self.source.coming(rows if self.rows is None else self.rows[rows])

    def __array__(self, *_args: object, **_more: object) -> np.ndarray:
        raise DataError(
            "E414",
            f"all {len(self):,} samples of {self.source.name} would have to be in memory at once ({self.nbytes:,} bytes), "
            "and they are read row by row; give fewer samples, or data that fit into memory.",
        )

    @property
    def unchanged(self) -> bool:
        """Whether rows are used as the source gives them."""
        return not self.changes

    @cached_property
    def survey(self) -> Survey:
        """What was found of the source's rows that are in here, before any change."""
        survey = self.source.survey
        return survey if self.rows is None else Survey(*(v[self.rows] for v in (survey.crc, survey.low, survey.high)))


def _numbers(index: Any, count: int) -> np.ndarray:
    """The numbers below `count` that an index chooses. Raises IndexError for one that is out of bounds."""
    numbers = np.asarray(index) if isinstance(index, np.ndarray | list | int | np.integer) else None
    if numbers is None or numbers.dtype.kind not in "iu" or not numbers.size:
        return np.arange(count)[index]
    if numbers.min() < -count or numbers.max() >= count:
        raise IndexError(f"row {int(numbers.max())} or {int(numbers.min())} of {count}")
    return np.where(numbers < 0, numbers + count, numbers)


def streams(x: object) -> bool:
    """Whether samples are read when they are wanted."""
    return isinstance(x, Rows)


def standing_in(source: Source) -> np.ndarray:
    """All rows of a source, to be used wherever an array of samples is."""
    return cast(np.ndarray, Rows(source))


def chosen(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The samples at these numbers, or where these truth values are true; of samples that stay where they lie none is read."""
    if not isinstance(x, Rows):
        return x[index]
    rows = np.arange(len(x)) if x.rows is None else x.rows
    return cast(np.ndarray, replace(x, rows=rows[index]))


def changed(x: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The samples after a change that concerns each by itself; done when they are read, where they are not in memory."""
    return cast(np.ndarray, replace(x, changes=(*x.changes, change))) if isinstance(x, Rows) else change(x)
