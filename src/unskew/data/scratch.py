"""Unpacked samples in a file that has no name, for as long as a process lives: unpacked once, and read from there like rows of a .npy file.

Nobody else can open such a file, so that no stranger's, no damaged and no old file is ever read in its place, two processes cannot
meet in it, and the system takes it away whatever ends the process. Nothing has to be kept for a run that is resumed: before it
trains, every sample is unpacked and looked at in any case.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from unskew import disk
from unskew.data.rows import Source
from unskew.data.stored import Stored
from unskew.errors import DataError, excerpt

NAME, OFF = "UNSKEW_SCRATCH", "off"
"""The environment variable that names the folder for such files, and what it holds where there shall be none."""
SHARE = 0.5
"""Of the free space of a disk, what one file takes at most."""
USUAL = Path("/var/tmp")
"""Where systems want large temporary files; /tmp is in memory on many of them."""
MOUNTS = Path("/proc/self/mountinfo")
"""Where Linux says which folders are on which disk."""


class Scratch:
    """Samples, float32, that are written one after another; read once all are there.

    why: why there is no file, or no more, in words that follow "because"; "" where there is one.
    """

    def __init__(self, shape: tuple[int, ...]):
        """shape: of all samples, [N, ...]. Raises DataError (E402) if the environment names a folder that is not there."""
        self.shape, self.size = shape, 4 * int(np.prod(shape, dtype=np.int64))
        self.folder, self._file, self.why = folder(), None, ""
        if self.folder is None:
            self.why = f"{NAME} is {OFF}"
        elif _in_memory(self.folder):
            self.why = f"{self.folder} lies in memory ({NAME} names another folder)"
        else:
            self._begin(self.folder)

    def _begin(self, folder: Path) -> None:
        try:
            if self.size > SHARE * disk.free(folder):
                space = f"take more than half of what is free in {folder}"
                self.why = f"in a file they would {space} ({NAME} names another folder)"
                return
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (closed with this object)
            if self.size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, self.size)
        except OSError as error:
            self._give_up(error)

    def put(self, begin: int, x: np.ndarray) -> None:
        """Write samples, float32 [n, ...], from this number on."""
        if self._file is None or not x.size:
            return
        try:
            self._file.seek(begin * x[0].nbytes)
            content = np.ascontiguousarray(x, "<f4").reshape(-1).view(np.uint8).data
            while content:  # one write may take only a part of it
                content = content[self._file.write(content) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.why = f"{self.folder} could not be written to: {error.strerror}"

    def told(self, how: str) -> str:
        """Where samples are read from, for a table. how: what has to be done each time where there is no file."""
        return (
            f"each time {how} again, because {self.why}" if self.why else f"from a file without a name in {self.folder}"
        )

    def samples(self, source: Source) -> Source:
        """What reads all samples from here, or the source from which they were taken."""
        return source if self._file is None else Unpacked(source, Stored.opened(self._file, self.shape, source.name))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class Unpacked(Source):
    """The samples of a source, which were all read once. copy: where they lie since; a process that is handed this has no copy."""

    def __init__(self, source: Source, copy: Stored):
        self.source, self.copy, self.name, self.shape, self.came = source, copy, source.name, source.shape, source.came
        self.__dict__["survey"] = source.survey

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "copy": None}

    @property
    def together(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.source.together if self.copy is None else None

    def read(self, rows: np.ndarray) -> np.ndarray:
        return (self.copy or self.source).read(rows)

    def coming(self, rows: np.ndarray) -> None:
        (self.copy or self.source).coming(rows)


def folder() -> Path | None:
    """Where such files go; None where there shall be none. Raises DataError (E402) if the environment names one that is not there."""
    named = os.environ.get(NAME, "")
    if named == OFF:
        return None
    if named and not Path(named).is_dir():
        raise DataError("E402", f"there is no folder {excerpt(named)}, which {NAME} names; make it, or unset {NAME}.")
    if named or os.environ.get("TMPDIR"):
        return Path(named or os.environ["TMPDIR"])
    return USUAL if os.access(USUAL, os.W_OK) else Path(tempfile.gettempdir())


def _in_memory(folder: Path) -> bool:
    """Whether what is written there takes memory, as far as the system says."""
    try:
        number = os.stat(folder).st_dev
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return False
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(fields[2] == device and fields[fields.index("-") + 1] in ("tmpfs", "ramfs") for fields in mounts)
