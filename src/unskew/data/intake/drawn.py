"""Samples of a set that hands them out one at a time, and that are too many for memory: each is asked for when it is wanted.

A set may give another sample at each reading, as random transforms do. Every sample has a checksum from the pass in which all
were checked, and one that differs from it ends the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from unskew.data.convert import depth_of
from unskew.data.rows import Source, Survey, checksums
from unskew.errors import DataError

LOOKED_AT = 16
"""Samples, evenly spaced, that are read twice before anything trains."""


class Drawn(Source):
    """The samples that a function gives by number. name: of the set. give: raises DataError for a sample that fails.

    like: sample 0. One pass over all samples is made here.
    Raises DataError: E403 for samples of unequal shapes or types, E413 for samples that differ from reading to reading.
    """

    def __init__(self, name: str, count: int, give: Callable[[int], np.ndarray], like: np.ndarray):
        self.name, self.shape, self.kind, self.give = name, (count, *like.shape), like.dtype, give
        bits = depth_of(like.dtype) if like.ndim > 1 else None
        self.full = (1 << bits) - 1 if bits else None
        self._one_at_a_time = threading.Lock()
        low_high = np.empty((2, count), np.float32)
        crc = np.empty(count, np.uint32)
        for i in range(count):
            x = self._sample(i)
            crc[i], low_high[:, i] = checksums(x[None])[0], (x.min(), x.max())
        self.__dict__["survey"] = Survey(crc, *low_high)
        self.read(np.unique(np.linspace(0, count - 1, LOOKED_AT).astype(np.int64)))

    def read(self, rows: np.ndarray) -> np.ndarray:
        x = np.empty((len(rows), *self.shape[1:]), np.float32)
        with self._one_at_a_time:
            for place, row in enumerate(rows.tolist()):
                x[place] = self._sample(row)
        wrong = np.flatnonzero(checksums(x) != self.survey.crc[rows])
        if len(wrong):
            raise DataError(
                "E413",
                f"{self.name}: sample {rows[wrong[0]]} is another than when it was checked (a random transform?); these "
                "samples do not fit into memory and are read again each time, so leave out what is random, or put it into "
                "the method: fedavg+augment.",
            )
        return x

    def _sample(self, i: int) -> np.ndarray:
        """Sample i as float32."""
        x = self.give(i)
        if x.shape != self.shape[1:] or x.dtype != self.kind:
            raise DataError(
                "E403",
                f"{self.name}: sample 0 is {self.kind} {list(self.shape[1:])}, sample {i} is {x.dtype} {list(x.shape)}; cut, "
                "pad or resize them to one shape.",
            )
        return x.astype(np.float32) if self.full is None else x.astype(np.float32) / np.float32(self.full)


def scaling(source: Drawn) -> str:
    """What scaling does to samples, "" if nothing."""
    return f"{source.kind.itemsize * 8}-bit whole numbers were divided by {source.full:,}" if source.full else ""
