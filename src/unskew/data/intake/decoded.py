"""Samples that are files of their own, one each: decoded once and kept, in memory or in a temporary file, or decoded when they
are wanted.

Letters: N files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from unskew.data.intake.images import each
from unskew.data.intake.notes import Note
from unskew.data.intake.room import fits, told
from unskew.data.rows import Source, Survey, checksums, standing_in
from unskew.data.scratch import Scratch
from unskew.errors import DataError

S = TypeVar("S")
Decode = Callable[[Path], tuple[np.ndarray, S]]
"""What makes a sample of a file, and tells what else was seen of it. Raises DataError for a file that it cannot read."""
Stamp = tuple[int, int]
"""Length of a file and time of its last change, in nanoseconds."""


class Decoded(Source):
    """The samples in files that were all decoded once. decode: what made them. stamps: of the files before that."""

    def __init__(self, name: str, files: Sequence[Path], decode: Decode[object], stamps: list[Stamp], survey: Survey):
        self.name, self.files, self.decode, self.stamps = name, files, decode, stamps
        self.__dict__["survey"] = survey
        sample, _ = decode(files[0])
        self.shape = (len(files), *sample.shape)

    def read(self, rows: np.ndarray) -> np.ndarray:
        x = np.empty((len(rows), *self.shape[1:]), np.float32)
        for place, row in enumerate(rows.tolist()):
            x[place] = self._sample(self.files[row], self.stamps[row])
        return x

    def _sample(self, file: Path, stamp: Stamp) -> np.ndarray:
        """The sample in a file. Raises DataError (E413) where the file is not what it was."""
        try:
            sample, _ = self.decode(file)
            changed = _stamp(file) != stamp
        except (DataError, OSError) as error:
            if not file.exists():
                raise _altered(file, "is gone") from error
            if not isinstance(error, DataError) or _stamp(file) != stamp:
                raise _altered(file, "has changed since it was checked") from error
            text = error.text.partition(";")[0].rstrip(".")
            raise DataError("E413", f"{text}, and could be before; see to its disk, and resume.") from error
        if changed:
            raise _altered(file, "has changed since it was checked")
        return sample


def decoded(
    name: str, files: Sequence[Path], shape: tuple[int, ...], decode: Decode[S], notes: list[Note]
) -> tuple[np.ndarray, list[S]]:
    """(the samples of files, float32 [N, *shape], or what stands in for them; what else was seen of each).

    name: of the set. All files are decoded here. Adds to the notes what stands in for samples. Raises the DataError of
    `decode`, with all files that cannot be read.
    """
    if fits(len(files), shape):
        x = np.empty((len(files), *shape), np.float32)

        def keep(i: int) -> S:
            x[i], seen = decode(files[i])
            return seen

        return x, each(files, keep)
    stamps: list[Stamp] = [(0, 0)] * len(files)
    scratch = Scratch((len(files), *shape))
    crc, low_high = np.empty(len(files), np.uint32), np.empty((2, len(files)), np.float32)

    def look(i: int) -> S:
        stamps[i] = _stamp(files[i])
        sample, seen = decode(files[i])
        scratch.put(i, sample[None])
        crc[i], low_high[:, i] = checksums(sample[None])[0], (sample.min(), sample.max())
        return seen

    seen = each(files, look)
    notes.append(told(len(files), shape, scratch.told("decoded")))
    return standing_in(scratch.samples(Decoded(name, files, decode, stamps, Survey(crc, *low_high)))), seen


def _stamp(file: Path) -> Stamp:
    try:
        now = file.stat()
    except OSError as error:
        raise DataError("E401", f"{file} cannot be read: {error.strerror}.") from error
    return now.st_size, now.st_mtime_ns


def _altered(file: Path, what: str) -> DataError:
    return DataError("E413", f"{file} {what}; leave data alone while they are trained on, and start the run again.")
