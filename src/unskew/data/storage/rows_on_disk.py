"""Samples that are read when they are needed: from a disk, for sets that are larger than memory, or from a
smaller array in memory.

A `Rows` object takes the place of an array of samples: it has a shape, returns an array for every index, and
records which rows of a source it holds and which functions are applied to them. `select_samples` takes a
subset without reading. Samples that are equal byte for byte are known by their digests, of which one pass
over all samples keeps 8 bytes each.

The file is a user's .npy file or, for samples that are converted in one pass, a scratch file. That one has no
name and exists as long as its process: no other process can open it, and the operating system removes it
however the process ends. A run that is resumed converts its samples again. Rows are read by position rather
than through a memory map: a file that is truncated while it is in use is then an error and does not kill the
process, and memory holds only the rows that are read.
Letters: N samples.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np

from unskew.errors import DataError, excerpt
from unskew.system.machine import usable_memory

READ_BLOCK = 1 << 22
"""Number of values in a block of a pass over all samples."""
PIECE = 1 << 16
"""Number of values that are changed at a time, which a processor's cache holds."""
SUM_BLOCK = 1 << 24
"""Number of values in a block of the channels' sums; it determines the sums' last bits."""
ALIGNMENT = 64
"""Alignment of arrays in memory, in bytes."""
MEMORY_SHARE = 0.25
"""The share of this process's memory that samples may take together; splitting off a test set needs twice
that."""
VARIABLE = "UNSKEW_SCRATCH"
"""The environment variable that names the folder for scratch files."""
DEFAULT_FOLDER = Path("/var/tmp")
"""The usual folder for large temporary files; /tmp is in memory on many systems."""


@dataclass(frozen=True, eq=False)
class Survey:
    """The result of a pass over all rows of a file.

    digests: of each row's bytes, uint64 [N]. low, high: each row's smallest and largest value, float32 [N];
    NaN for a row that contains one.
    """

    digests: np.ndarray
    low: np.ndarray
    high: np.ndarray


class RowSource:
    """The rows of an array of samples, read from any thread as float32 [n, ...].

    name: of the set or file, for messages. shape: [N, ...]. kind: type of the stored numbers. in_memory:
    whether reading takes no disk.
    """

    name: str
    shape: tuple[int, ...]
    kind: np.dtype[Any]
    in_memory = True

    def read(self, rows: np.ndarray) -> np.ndarray:
        """These rows, int64 [n]."""
        raise NotImplementedError

    def prefetch(self, rows: np.ndarray) -> None:
        """Announces the next rows, so that a disk may prefetch them."""

    @property
    def source_dtype(self) -> np.dtype[Any]:
        """The original type of unscaled numbers; float32 for scaled ones."""
        return np.dtype(np.float32)

    @cached_property
    def survey(self) -> Survey:
        """The survey of all rows, made once."""
        return survey_rows(self.shape, self.read)


class StoredImages(RowSource):
    """Images as their file stores them: uint8 [N, ...], divided by 255 when they are read."""

    def __init__(self, images: np.ndarray, name: str = "images"):
        self.images, self.name, self.shape, self.kind = images, name, images.shape, images.dtype

    def read(self, rows: np.ndarray) -> np.ndarray:
        return np.divide(self.images[rows], np.float32(255), dtype=np.float32, order="C")


class HeldRows(RowSource):
    """Some of the samples x [N, ...]; the others are read again if they are indexed after all.

    held: the numbers of the samples to keep, ascending, int64 [n]. again: returns all samples.
    """

    kind = np.dtype(np.float32)

    def __init__(self, x: Rows, held: np.ndarray, again: Callable[[], np.ndarray]):
        self.name, self.shape, self.held, self.x, self._again = x.source.name, x.shape, held, x[held], again

    def read(self, rows: np.ndarray) -> np.ndarray:
        if np.array_equal(rows, self.held):
            return self.x
        places = np.searchsorted(self.held, rows).clip(max=len(self.held) - 1)
        return self.x[places] if np.array_equal(self.held[places], rows) else self._all[rows]

    @cached_property
    def _all(self) -> np.ndarray:
        return self._again()


class RowFile(RowSource):
    """The rows of an array in a file, in C order.

    file: the open file. path: its name, for messages. offset: position of its first byte. shape: [N, ...].
    kind: type of the numbers. full: divisor of the numbers, None to leave them unchanged. A row that has
    changed since the file was opened is an error, never another sample.
    """

    in_memory = False

    def __init__(
        self,
        file: IO[bytes],
        path: Path,
        shape: tuple[int, ...],
        kind: np.dtype[Any],
        offset: int = 0,
        full: int | None = None,
    ):
        self.file, self.path, self.name = file, path, path.name
        self.shape, self.kind, self.offset, self.full = shape, kind, offset, full
        self.row_bytes = prod(shape[1:]) * kind.itemsize
        self._stamp = self._file_stamp()

    @property
    def source_dtype(self) -> np.dtype[Any]:
        return self.kind.newbyteorder("=") if self.full is None else np.dtype(np.float32)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """These rows, int64 [n]. Raises DataError (E413) for rows that cannot be read."""
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
            raise self._changed("has changed since it was checked")
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            x = raw.astype(np.float32, copy=False)
        return x if self.full is None else np.divide(x, np.float32(self.full), out=x)

    def prefetch(self, rows: np.ndarray) -> None:
        if hasattr(os, "posix_fadvise"):
            for _, count, offset in self._ranges(rows):
                os.posix_fadvise(self.file.fileno(), offset, count, os.POSIX_FADV_WILLNEED)

    def _changed(self, change: str) -> DataError:
        text = f"{self.path} {change}; leave data alone while they are trained on, and start the run again"
        return DataError("E413", f"{text}.")

    def _file_stamp(self) -> tuple[int, int]:
        """Size of the file and time of its last change."""
        status = os.fstat(self.file.fileno())
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
            count = os.preadv(self.file.fileno(), [memory], offset)
            if not count:
                raise self._changed("is shorter than when it was checked")
            memory, offset = memory[count:], offset + count


def _aligned_array(shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
    """An empty array aligned as kernels want samples (unskew.core.trees.align), so that they need not copy
    it."""
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    return memory[skip : skip + size].view(kind).reshape(shape)


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

    source: RowSource
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
        x = self._read(np.atleast_1d(rows).astype(np.int64, copy=False))
        return x if np.ndim(rows) else x[0]

    def _read(self, rows: np.ndarray) -> np.ndarray:
        """The source's rows of these numbers after all changes. Rows in memory are read piece by piece, so
        that no change makes another array of this size."""
        step = max(1, PIECE // max(1, prod(self.shape[1:])))
        if self.source.in_memory and self.changes and len(rows) > step:
            x = np.empty((len(rows), *self.shape[1:]), np.float32)
            for begin in range(0, len(rows), step):
                x[begin : begin + step] = self._read(rows[begin : begin + step])
            return x
        x = self.source.read(rows)
        for change in self.changes:
            x = change(x)
        return x

    def prefetch(self, rows: np.ndarray) -> None:
        """Announces that the samples at these numbers are read next, so that a disk may prefetch them."""
        self.source.prefetch(rows if self.rows is None else self.rows[rows])

    def __array__(self, *_args: object, **_more: object) -> np.ndarray:
        if self.source.in_memory:
            return self[:]
        text = f"all {len(self):,} samples of {self.source.name} would have to be in memory at once"
        raise DataError("E142", f"{text} ({self.nbytes:,} bytes); give fewer samples, or data that fit.")

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
    return isinstance(x, Rows) and not x.source.in_memory


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


def mapped_rows(x: np.ndarray, full: int | None, name: str) -> np.ndarray:
    """A mapped array as rows of its file, divided by `full` if it is given. name: for messages.

    Raises DataError: E402 if the file has been removed, E403 if the rows do not follow one another in it, as
    in Fortran order, or if the array may have been changed in memory only.
    """
    if not isinstance(x, np.memmap) or x.filename is None or x.mode == "c" or not x.flags.c_contiguous:  # pyright: ignore[reportUnnecessaryComparison]
        text = f"{name}: {x.nbytes:,} bytes are mapped in Fortran order, in steps, or with changes (mode 'c')"
        raise DataError("E403", f"{text}; save the array in C order, and map it with mode 'r'.")
    mapping = np.frombuffer(x._mmap, np.uint8)  # type: ignore[attr-defined]
    begins = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY
    offset = begins + x.__array_interface__["data"][0] - mapping.__array_interface__["data"][0]
    path = Path(x.filename)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed with its RowFile)
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    return cast(np.ndarray, Rows(RowFile(file, path, x.shape, x.dtype, offset, full)))


def fits_memory(count: int, shape: tuple[int, ...]) -> bool:
    """Whether `count` samples of this shape fit the memory budget as float32."""
    return float32_bytes(count, shape) <= MEMORY_SHARE * usable_memory()


def float32_bytes(count: int, shape: tuple[int, ...]) -> int:
    """Bytes of `count` samples of this shape as float32."""
    return 4 * count * prod(shape)


class SampleSink:
    """The destination of the samples of a set, float32 [N, ...], each of which is written once: memory, or a
    scratch file.

    in_memory: whether to keep them in memory; None decides by their size.
    Raises DataError: E402 if the environment names a folder that does not exist, E142 if there is no room in
    the folder.
    """

    def __init__(self, name: str, shape: tuple[int, ...], in_memory: bool | None = None):
        self.name, self.shape = name, shape
        self._memory: np.ndarray | None = None
        if fits_memory(shape[0], shape[1:]) if in_memory is None else in_memory:
            self._memory = np.empty(shape, np.float32)
            return
        self.folder, self.size = scratch_folder(), 4 * prod(shape)
        self._survey = Survey(np.empty(shape[0], np.uint64), *np.empty((2, shape[0]), np.float32))
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  (closed with this object)
            if self.size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, self.size)
        except OSError as error:
            raise self._disk_error(error) from error

    def put(self, begin: int, x: np.ndarray) -> None:
        """Write samples [n, ...] from this number on."""
        rows = slice(begin, begin + len(x))
        if self._memory is not None:
            self._memory[rows] = x
            return
        x, survey = np.ascontiguousarray(x, "<f4"), self._survey
        survey.digests[rows], survey.low[rows], survey.high[rows] = survey_block(x)
        try:
            self._file.seek(begin * 4 * prod(self.shape[1:]))
            self._file.write(x.reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise self._disk_error(error) from error

    def samples(self, notes: list[Any] | None = None) -> np.ndarray:
        """All samples: the array, or rows of the file, of which the notes then say where it is."""
        if self._memory is not None:
            return self._memory
        try:
            self._file.flush()
        except OSError as error:
            raise self._disk_error(error) from error
        source = RowFile(self._file, Path(f"the copy of {self.name}"), self.shape, np.dtype("<f4"))
        source.name, source.survey = self.name, self._survey
        if notes is not None:
            notes.append(scratch_note(self.shape))
        return cast(np.ndarray, Rows(source))

    def _disk_error(self, error: OSError) -> DataError:
        text = f"samples take {self.size / 2**30:,.1f} GiB, more than memory holds"
        why = f"{self.folder} cannot store them: {error.strerror}"
        remedy = f"set {VARIABLE} to a folder on a disk with more room"
        return DataError("E142", f"{self.name}: {text}, and {why}; {remedy}.")


def scratch_note(shape: tuple[int, ...]) -> tuple[Literal["note"], str]:
    """The note that samples of this shape are read during training."""
    text = f"together they would take {4 * prod(shape) / 2**30:,.1f} GiB of memory"
    place = f"from a file without a name in {scratch_folder()}"
    return "note", f"samples are read when they are wanted: {text}; {place}"


def concatenate_samples(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All parts, arrays float32 [n, ...] or rows, as one array; as rows of their file or of a scratch file if
    some part is read from disk, or if they do not fit into memory together."""
    read, count, shape = [p for p in parts if isinstance(p, Rows)], sum(map(len, parts)), parts[0].shape[1:]
    if not read and fits_memory(count, shape):
        return np.concatenate(parts)
    first = read[0] if len(read) == len(parts) else None
    if first and all(p.source is first.source and p.changes == first.changes for p in read):
        rows = [np.arange(len(p)) if p.rows is None else p.rows for p in read]
        return cast(np.ndarray, replace(first, rows=np.concatenate(rows)))
    sink = SampleSink(read[0].source.name if read else "all clients", (count, *shape), False)
    begin = 0
    for part in parts:
        for rows in row_blocks(part.shape):
            sink.put(begin + int(rows[0]), part[rows])
        begin += len(part)
    return sink.samples()


def scratch_folder() -> Path:
    """The folder for scratch files. Raises DataError (E402) if the environment names a missing folder."""
    setting = os.environ.get(VARIABLE, "")
    if setting and not Path(setting).is_dir():
        text = f"there is no folder {excerpt(setting)}, which {VARIABLE} names"
        raise DataError("E402", f"{text}; make it, or unset {VARIABLE}.")
    if setting or os.environ.get("TMPDIR"):
        return Path(setting or os.environ["TMPDIR"])
    return DEFAULT_FOLDER if os.access(DEFAULT_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
