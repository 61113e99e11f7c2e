"""The samples of a table in memory, or what stands in for them where they are read when they are wanted.

Letters: N samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.data.intake.images import each
from unskew.data.intake.notes import Note
from unskew.data.intake.room import fits, told
from unskew.data.parquet.forms import Packed
from unskew.data.parquet.groups import Form, RowGroups
from unskew.data.parquet.several import Named, Shards
from unskew.data.rows import Survey, checksums, standing_in
from unskew.data.scratch import Scratch


class _Taken:
    """Where a pass puts samples: into memory, or, where they do not fit, what it saw of each."""

    def __init__(self, source: RowGroups, in_memory: bool | None):
        self.source, rows = source, len(source.table)
        in_memory = fits(rows, source.form.shape) if in_memory is None else in_memory
        self.x = np.empty(source.shape, np.float32) if in_memory else None
        self.scratch = Scratch(source.shape) if self.x is None else None
        self.crc, self.low_high = np.empty(rows, np.uint32), np.empty((2, rows), np.float32)

    def put(self, begin: int, x: np.ndarray) -> None:
        """Samples [n, ...] from this row on."""
        here = slice(begin, begin + len(x))
        if self.scratch is None:
            assert self.x is not None
            self.x[here] = x
            return
        self.scratch.put(begin, x)
        flat = x.reshape(len(x), -1)
        self.crc[here], self.low_high[:, here] = checksums(x), (flat.min(1), flat.max(1))

    def samples(self, notes: list[Note]) -> np.ndarray:
        """All samples, or what stands in for them, which is told."""
        if self.scratch is None:
            assert self.x is not None
            return self.x
        notes.append(told(len(self.crc), self.source.form.shape, self.scratch.told("unpacked")))
        self.source.checks(Survey(self.crc, *self.low_high))
        self.source.let_go()
        return standing_in(self.scratch.samples(self.source))


def samples_of(table: Shards, form: Form, notes: list[Note], in_memory: bool | None = None) -> np.ndarray:
    """The samples of a table, float32 [N, ...], in one pass over its rows. in_memory: whether they are kept there; None where
    that follows from their size. Adds to the notes; raises the DataError of `form`."""
    source = RowGroups(table, form)
    taken = _Taken(source, in_memory)
    for begin, held in source.passed():
        taken.put(begin, form.samples(held, np.arange(len(held)), begin))
    return taken.samples(notes)


def files_of(
    table: Shards, form: Packed, notes: list[Note], in_memory: bool | None = None
) -> tuple[np.ndarray, list[Any]]:
    """(the same of files, what else was seen of each). Raises DataError (E401), with all files that cannot be read."""
    source = RowGroups(table, form)
    taken = _Taken(source, in_memory)

    def look(row: int) -> Any:
        sample, seen = form.one(source.one(row), row)
        taken.put(row, sample[None])
        return seen

    seen = each(Named(table), look)
    return taken.samples(notes), seen
