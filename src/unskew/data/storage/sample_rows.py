"""Samples that stay on disk and are read when they are needed, for sets that are larger than memory.

A `Rows` object takes the place of an array of samples: it has a shape, returns an array for every index, and
records which rows of its source it holds and which functions are applied to them. `select_samples` takes a
subset without reading. Samples that are equal byte for byte are known by their digests, of which one pass
over all samples keeps 8 bytes each.
Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from unskew.errors import DataError

READ_BLOCK = 1 << 22
"""Number of values in a block of a pass over all samples."""
SUM_BLOCK = 1 << 24
"""Number of values in a block of the channels' sums; it determines the sums' last bits."""


@dataclass(frozen=True, eq=False)
class Survey:
    """The result of a pass over all rows of a source.

    digests: of each row's bytes, uint64 [N]. low, high: each row's smallest and largest value, float32 [N];
    NaN for a row that contains one.
    """

    digests: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Source:
    """Samples on disk, read from any thread. name: for messages. shape: [N, ...].

    Subclasses read rows; a row that has changed since the source was opened is an error, never another
    sample.
    """

    name: str
    shape: tuple[int, ...]
    source_dtype: np.dtype[Any] = np.dtype(np.float32)
    """The original type of unscaled numbers; float32 for scaled ones."""

    def read(self, rows: np.ndarray) -> np.ndarray:
        """These rows, int64 [n], as float32 [n, ...]; called from any thread. Raises DataError (E413) for
        rows that cannot be read."""
        raise NotImplementedError

    def prefetch(self, rows: np.ndarray) -> None:
        """Announces the next rows, so that a disk may prefetch them; called from any thread. Nothing is
        raised."""

    @cached_property
    def survey(self) -> Survey:
        """The survey of all rows, made once."""
        return survey_rows(self.shape, self.read)


def changed_error(source: object, change: str) -> DataError:
    """The error for samples that changed during a run."""
    text = f"{source} {change}; leave data alone while they are trained on, and start the run again"
    return DataError("E413", f"{text}.")


def survey_rows(shape: tuple[int, ...], read: Callable[[np.ndarray], np.ndarray]) -> Survey:
    """The survey of all samples of this shape. read: returns the samples at these numbers."""
    parts = [survey_block(read(rows)) for rows in row_blocks(shape)]
    return Survey(*(np.concatenate(values) for values in zip(*parts)))


def row_digests(x: np.ndarray) -> np.ndarray:
    """The digest of each sample's bytes, uint64 [N]."""
    if isinstance(x, Rows):
        return x.survey.digests
    texts = (blake2b(np.ascontiguousarray(row).data, digest_size=8).digest() for row in x)
    return np.fromiter((int.from_bytes(text, "little") for text in texts), np.uint64, len(x))


def first_duplicates(x: np.ndarray) -> np.ndarray:
    """For each sample the first one that equals it, itself if none does: int64 [N]."""
    _, first, group = np.unique(row_digests(x), return_index=True, return_inverse=True)
    return first[group.reshape(-1)]


def survey_block(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(digests, low, high) of samples [n, ...], as `Survey` holds them."""
    flat = x.reshape(len(x), -1)
    return row_digests(x), flat.min(1), flat.max(1)


def row_blocks(shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The rows of samples of this shape, in blocks."""
    step = max(1, READ_BLOCK // max(1, int(np.prod(shape[1:]))))
    for begin in range(0, shape[0], step):
        yield np.arange(begin, min(begin + step, shape[0]))


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of every channel of samples [N, channels, ...], float64 [channels].

    Sums are taken block by block, so that samples in memory and on disk give equal bits.
    """
    axes, step = (0, *range(2, x.ndim)), max(1, SUM_BLOCK // max(1, int(np.prod(x.shape[1:]))))
    starts, count = range(0, len(x), step), x.shape[0] * int(np.prod(x.shape[2:]))
    mean = sum(x[i : i + step].sum(axes, dtype=np.float64, keepdims=True) for i in starts) / count
    squares = sum(np.square(x[i : i + step] - mean).sum(axes, dtype=np.float64) for i in starts)
    return np.reshape(mean, -1), np.sqrt(squares / count)


@dataclass(frozen=True, eq=False)
class Rows:
    """Some or all rows of a source, in place of an array of samples.

    rows: numbers of the source's rows, int64 [N]; None for all. changes: functions that are applied to rows
    after reading, in this order.
    """

    source: Source
    rows: np.ndarray | None = None
    changes: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()

    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """As NumPy's: (N, *shape of a sample)."""
        return self.source.shape if self.rows is None else (len(self.rows), *self.source.shape[1:])

    @property
    def ndim(self) -> int:
        """As NumPy's."""
        return len(self.source.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the samples would take in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """The samples at a number, a slice, or an array of numbers or truth values, read now; for a number
        a single sample."""
        rows = _row_numbers(index, len(self)) if self.rows is None else self.rows[index]
        x = self.source.read(np.atleast_1d(rows).astype(np.int64, copy=False))
        for change in self.changes:
            x = change(x)
        return x if np.ndim(rows) else x[0]

    def prefetch(self, rows: np.ndarray) -> None:
        """Announces that the samples at these numbers are read next, so that a disk may prefetch them."""
        self.source.prefetch(rows if self.rows is None else self.rows[rows])

    def __array__(self, *_args: object, **_more: object) -> np.ndarray:
        text = f"all {len(self):,} samples of {self.source.name} would have to be in memory at once"
        raise DataError("E142", f"{text} ({self.nbytes:,} bytes); give fewer samples, or data that fit.")

    @property
    def unchanged(self) -> bool:
        """Whether rows are used exactly as the source has them."""
        return not self.changes

    @cached_property
    def survey(self) -> Survey:
        """The source's survey of these rows, before any change."""
        survey = self.source.survey
        if self.rows is None:
            return survey
        return Survey(*(values[self.rows] for values in (survey.digests, survey.low, survey.high)))


def _row_numbers(index: Any, count: int) -> np.ndarray:
    """The numbers below `count` that an index selects. Raises IndexError for one that is out of bounds."""
    numbers = np.asarray(index) if isinstance(index, np.ndarray | list | int | np.integer) else None
    if numbers is None or numbers.dtype.kind not in "iu" or not numbers.size:
        return np.arange(count)[index]
    if numbers.min() < -count or numbers.max() >= count:
        raise IndexError(f"row {int(numbers.max())} or {int(numbers.min())} of {count}")
    return np.where(numbers < 0, numbers + count, numbers)


def is_streamed(x: object) -> bool:
    """Whether samples are read from disk when they are needed."""
    return isinstance(x, Rows)


def as_rows(source: Source) -> np.ndarray:
    """All rows of a source, typed as an array of samples because it replaces one."""
    return cast(np.ndarray, Rows(source))


def select_samples(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The samples at these numbers or truth values; samples on disk are not read."""
    if not isinstance(x, Rows):
        return x[index]
    rows = np.arange(len(x)) if x.rows is None else x.rows
    return cast(np.ndarray, replace(x, rows=rows[index]))


def map_samples(x: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The samples after a function that acts on each separately; samples on disk are changed when they are
    read."""
    return cast(np.ndarray, replace(x, changes=(*x.changes, change))) if isinstance(x, Rows) else change(x)
