"""The samples of Parquet files, read row group by row group when they are needed.

A row group is unpacked from its beginning, in pieces. The most recent pieces stay in memory, so that samples
that are read in order are unpacked once.
Letters: N samples.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from unskew.data.parquet.table import ShardTable
from unskew.data.samples.memory_budget import float32_bytes
from unskew.data.storage.sample_rows import Source, Survey, changed_error, checksums
from unskew.errors import DataError
from unskew.system.machine import usable_memory

CACHE_SHARE = 1 / 16
"""The largest share of memory for all cached pieces, and for a single piece."""
READ_SHARE = 1 / 64
"""The share of memory for samples that are read at once; each read unpacks every row group that contains a
requested row."""
PIECE_BYTES = 1 << 22
"""Approximate size of a piece, in bytes."""
ROWS_AT_ONCE = 1 << 12
"""Maximal number of rows that are unpacked at once."""
NO_ROWS = np.zeros(0, np.float32)


class RowForm:
    """The conversion of rows to samples. columns: names of the columns that it reads. shape: shape of a
    sample.

    row_bytes: approximate size of an unpacked row. at_once: maximal number of rows that are unpacked at once.
    source_dtype: as in `Source`.
    """

    source_dtype = Source.source_dtype
    columns: tuple[str, ...]
    shape: tuple[int, ...]
    row_bytes: int
    at_once: int

    def unpack(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        """Unpacked rows, [n, ...]. columns: Arrow arrays by name. begin: number of the first row."""
        raise NotImplementedError

    def samples(self, unpacked: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        """The samples float32 [len(rows), *shape] at these positions of unpacked rows. begin: number of
        the first unpacked row."""
        raise NotImplementedError


class RowGroups(Source):
    """The rows of a table as samples. checked: whether all have been read once, so that a failure means
    that the file changed."""

    def __init__(self, table: ShardTable, form: RowForm):
        self.table, self.form, self.name, self.source_dtype = table, form, table.name, form.source_dtype
        self.shape, self.read_size = (len(table), *form.shape), int(READ_SHARE * usable_memory())
        self.checked, self.most = False, int(CACHE_SHARE * usable_memory())
        if (size := max(form.row_bytes, float32_bytes(1, form.shape))) > self.most:
            text = f"a row takes {size:,} bytes, and at most {self.most:,} are read at once"
            raise DataError("E142", f"{table.name}: {text}; write smaller samples.")
        rows = max(1, PIECE_BYTES // max(1, form.row_bytes))
        self.at_once = min(form.at_once, rows)
        self.pieces = _pieces(table, rows - rows % self.at_once)
        self.ends = np.append(self.pieces[1:, 0], len(table))
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()
        self._cached_bytes = 0
        self._batches: Iterator[Any] = iter(())
        self._next, self._surplus = -1, list[np.ndarray]()

    def __getstate__(self) -> dict[str, Any]:
        private = ("_lock", "_cache", "_cached_bytes", "_batches", "_next", "_surplus")
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def read(self, rows: np.ndarray) -> np.ndarray:
        x = np.empty((len(rows), *self.shape[1:]), np.float32)
        places = np.argsort(rows, kind="stable")
        pieces = np.searchsorted(self.pieces[:, 0], rows[places], "right") - 1
        begins = np.flatnonzero(np.diff(pieces, prepend=-1))
        parts = dict(zip(pieces[begins].tolist(), np.split(places, begins[1:]))) if len(rows) else {}
        with self._lock:
            for number in sorted({int(self.pieces[piece, 1]) for piece in parts}):
                self.table.shards[number].check()
            # cached pieces first, then the others in the order of the files
            for piece in sorted(parts, key=lambda piece: piece not in self._cache):
                x[parts[piece]] = self._samples(piece, rows[parts[piece]])
        wrong = np.flatnonzero(checksums(x) != self.survey.crc[rows])
        if len(wrong):
            place = self.table.where(int(rows[wrong[0]]))
            raise changed_error(place, "is another than when it was checked")
        return x

    def record_survey(self, survey: Survey) -> None:
        """Record the survey of all samples: from now on a sample that differs or cannot be read is an
        error."""
        self.__dict__["survey"], self.checked = survey, True

    def clear_cache(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._cache.clear()
            self._cached_bytes = 0

    def unpacked_pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, unpacked rows) of all pieces, in order."""
        for piece, begin in enumerate(self.pieces[:, 0].tolist()):
            yield begin, self._piece(piece)

    def row(self, row: int) -> Any:
        """An unpacked row."""
        piece = int(np.searchsorted(self.pieces[:, 0], row, "right")) - 1
        return self._piece(piece)[row - int(self.pieces[piece, 0])]

    def _samples(self, piece: int, rows: np.ndarray) -> np.ndarray:
        """The samples at these rows of a piece. Raises DataError (E413) if they could be read before."""
        begin = int(self.pieces[piece, 0])
        try:
            return self.form.samples(self._piece(piece), rows - begin, begin)
        except DataError as error:
            if error.code == "E413" or not self.checked:
                raise
            self.table.shards[int(self.pieces[piece, 1])].check()
            text = error.text.rstrip(".")
            raise DataError("E413", f"{text}, and could be before; see to its disk, and resume.") from error

    def _piece(self, piece: int) -> np.ndarray:
        """The unpacked rows of a piece."""
        if piece in self._cache:
            self._cache.move_to_end(piece)
            return self._cache[piece]
        try:
            same_group = self._next >= 0 and (self.pieces[self._next, 1:] == self.pieces[piece, 1:]).all()
            if not same_group or self._next > piece:
                self._open(piece)
            while self._next < piece:
                self._advance(skip=True)
            unpacked = self._advance(skip=False)
        except BaseException:
            self._next = -1
            raise
        self._keep(piece, unpacked)
        return unpacked

    def _open(self, piece: int) -> None:
        """Begin to read at the first piece of this piece's row group."""
        _, number, group = self.pieces[piece].tolist()
        first = piece
        while first and (self.pieces[first - 1, 1:] == (number, group)).all():
            first -= 1
        raw = [self.table.columns[name].name for name in self.form.columns]
        self._batches, self._surplus = self.table.shards[number].batches(group, raw, self.at_once), []
        self._next = first

    def _advance(self, skip: bool) -> np.ndarray:
        """The rows of the next piece, or nothing if it is skipped; after the last piece of a row group its
        end is checked."""
        piece, parts, size = self._next, list[np.ndarray](), 0
        begin, end = int(self.pieces[piece, 0]), int(self.ends[piece])
        while begin < end:
            batch = None if self._surplus else next(self._batches)
            if skip and batch is not None and batch.num_rows <= end - begin:
                begin += batch.num_rows
                continue
            part = self._surplus.pop() if batch is None else self._unpack(batch, begin)
            if len(part) > end - begin:
                self._surplus.append(part[end - begin :])
                part = part[: end - begin]
            parts.append(part)
            begin, size = begin + len(part), size + _piece_bytes(part)
            if size > self.most:
                place = self.table.where(int(self.pieces[piece, 0]))
                text = (
                    f"the {int(self.ends[piece] - self.pieces[piece, 0]):,} rows from {place} on unpack to"
                    " more than"
                )
                raise DataError("E142", f"{text} {self.most:,} bytes; write smaller ones.")
        last = piece + 1 == len(self.pieces) or bool(
            (self.pieces[piece + 1, 1:] != self.pieces[piece, 1:]).any()
        )
        if last:
            next(self._batches, None)
        self._next = -1 if last else piece + 1
        if skip:
            return NO_ROWS
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _unpack(self, batch: Any, begin: int) -> np.ndarray:
        columns = {name: batch.column(self.table.columns[name].name) for name in self.form.columns}
        return self.form.unpack(columns, begin)

    def _keep(self, piece: int, unpacked: np.ndarray) -> None:
        """Cache a piece, and drop those that were not used for longest."""
        self._cache[piece] = unpacked
        self._cached_bytes += _piece_bytes(unpacked)
        while self._cached_bytes > self.most and len(self._cache) > 1:
            self._cached_bytes -= _piece_bytes(self._cache.popitem(last=False)[1])


def _pieces(table: ShardTable, rows: int) -> np.ndarray:
    """(first row, number of the file, row group) of every piece, int64 [pieces, 3].

    Pieces have `rows` rows, or fewer at the end of a row group.
    """
    parts, first = [np.zeros((0, 3), np.int64)], 0
    for number, shard in enumerate(table.shards):
        for group, count in enumerate(shard.groups):
            begins = np.arange(first, first + count, rows)
            parts.append(np.stack([begins, np.full_like(begins, number), np.full_like(begins, group)], 1))
            first += count
    return np.concatenate(parts)


def _piece_bytes(unpacked: np.ndarray) -> int:
    """The size of unpacked rows, in bytes."""
    return sum(len(content or b"") for content in unpacked) if unpacked.dtype.kind == "O" else unpacked.nbytes
