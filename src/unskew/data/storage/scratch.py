"""A scratch file for samples that do not fit into memory: they are converted once, in one pass, and then read
like rows of a .npy file.

The file has no name and exists as long as its process. No other process can open it, so no damaged or
outdated file is ever read in its place, and the operating system removes it however the process ends. A run
that is resumed converts its samples again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from unskew.data.storage.npy_rows import NpyRows
from unskew.data.storage.sample_rows import Rows, Source, Survey, as_rows, row_blocks, survey_block
from unskew.errors import DataError, excerpt
from unskew.system.machine import usable_memory

MEMORY_SHARE = 0.25
"""The share of this process's memory that samples may take together; splitting off a test set needs twice
that."""
VARIABLE = "UNSKEW_SCRATCH"
"""The environment variable that names the folder for such files."""
DEFAULT_FOLDER = Path("/var/tmp")
"""The usual folder for large temporary files; /tmp is in memory on many systems."""


def fits_memory(count: int, shape: tuple[int, ...], other_bytes: int = 0) -> bool:
    """Whether `count` samples of this shape fit the memory budget as float32. other_bytes: bytes that other
    samples take."""
    return other_bytes + float32_bytes(count, shape) <= MEMORY_SHARE * usable_memory()


def float32_bytes(count: int, shape: tuple[int, ...]) -> int:
    """Bytes of `count` samples of this shape as float32."""
    return 4 * count * prod(shape)


class ScratchRows(NpyRows):
    """The rows of a scratch file."""


class SampleSink:
    """The destination of the samples of a set, float32 [N, ...], each of which is written once: memory, or a
    scratch file.

    in_memory: whether to keep them in memory; None decides by their size. source_dtype: as in `Source`.
    Raises DataError: E402 if the environment names a folder that does not exist, E142 if there is no room in
    the folder.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        in_memory: bool | None = None,
        source_dtype: np.dtype[Any] = Source.source_dtype,
    ):
        self.name, self.shape, self.source_dtype = name, shape, source_dtype
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
        path = Path(f"the copy of {self.name}")
        source = ScratchRows(path, 0, self.shape, np.dtype("<f4"), None, self._file)
        source.name, source.source_dtype = self.name, self.source_dtype
        source.__dict__["survey"] = self._survey
        if notes is not None:
            notes.append(scratch_note(self.shape))
        return as_rows(source)

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
    """All parts, arrays float32 [n, ...] or rows, as one array; if some part is read from disk, as rows of
    its source or of one scratch file."""
    read = [part for part in parts if isinstance(part, Rows)]
    if not read:
        return np.concatenate(parts)
    first = read[0]
    if len(read) == len(parts) and all(p.source is first.source and p.changes == first.changes for p in read):
        rows = [np.arange(len(p)) if p.rows is None else p.rows for p in read]
        return cast(np.ndarray, replace(first, rows=np.concatenate(rows)))
    sink = SampleSink(first.source.name, (sum(map(len, parts)), *first.shape[1:]), False)
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
