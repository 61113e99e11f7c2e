"""Samples of several clients one after another, of which some are read when they are wanted.

Letters: N samples of all clients together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from unskew.data.rows import Rows, Source, Survey, standing_in, streams, surveyed


class Joined(Source):
    """The samples of all parts, in order. parts: float32 [n, ...] of one shape, in memory or not; at least one."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = parts
        self.name = next(part.source.name for part in parts if isinstance(part, Rows))
        self.starts = np.cumsum([0, *map(len, parts)])
        asked = [part.source.together for part in parts if isinstance(part, Rows)]
        self.together = max((most for most in asked if most), default=None)
        self.shape = (int(self.starts[-1]), *parts[0].shape[1:])

    def read(self, rows: np.ndarray) -> np.ndarray:
        x = np.empty((len(rows), *self.shape[1:]), np.float32)
        owner = np.searchsorted(self.starts, rows, "right") - 1
        for number in np.unique(owner).tolist():
            here = np.flatnonzero(owner == number)
            x[here] = self.parts[number][rows[here] - self.starts[number]]
        return x

    def coming(self, rows: np.ndarray) -> None:
        for part, start in zip(self.parts, self.starts):
            if isinstance(part, Rows):
                part.coming(rows[(rows >= start) & (rows < start + len(part))] - start)

    @cached_property
    def survey(self) -> Survey:
        surveys = [
            part.survey if isinstance(part, Rows) and part.unchanged else surveyed(part.shape, part.__getitem__)
            for part in self.parts
        ]
        return Survey(*(np.concatenate(values) for values in zip(*((s.crc, s.low, s.high) for s in surveys))))


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All parts as one array, or what stands in for them where one of them is read when it is wanted."""
    read = [part for part in parts if isinstance(part, Rows)]
    if len(read) == len(parts) and all(p.source is read[0].source and p.changes == read[0].changes for p in read):
        rows = [np.arange(len(p)) if p.rows is None else p.rows for p in read]
        return cast(np.ndarray, replace(read[0], rows=np.concatenate(rows)))
    return standing_in(Joined(parts)) if any(map(streams, parts)) else np.concatenate(parts)
