"""A scratch file for decoded samples: they are decoded once and then read back like rows of a .npy file.

The file has no name and exists as long as its process. No other process can open it, so no damaged or
outdated file is ever read in its place, and the operating system removes it however the process ends. A run
that is resumed decodes its samples again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from unskew.data.storage.npy_rows import NpyRows
from unskew.data.storage.sample_rows import Source
from unskew.errors import DataError, excerpt
from unskew.system import disk

VARIABLE, OFF = "UNSKEW_SCRATCH", "off"
"""The environment variable that names the folder for such files, and its value to disable them."""
FREE_SHARE = 0.5
"""The largest share of a disk's free space that one file takes."""
DEFAULT_FOLDER = Path("/var/tmp")
"""The usual folder for large temporary files; /tmp is in memory on many systems."""
MOUNT_TABLE = Path("/proc/self/mountinfo")
"""Linux's table of mounted disks."""


class ScratchFile:
    """A file of float32 samples that are written in order, and read when all are there.

    why: the reason why there is no file, in words that follow "because"; "" if there is one.
    """

    def __init__(self, shape: tuple[int, ...]):
        """shape: shape of all samples, [N, ...]. Raises DataError (E402) if the environment names a folder
        that does not exist."""
        self.shape, self.size = shape, 4 * int(np.prod(shape, dtype=np.int64))
        self.folder, self._file, self.why = scratch_folder(), None, ""
        if self.folder is None:
            self.why = f"{VARIABLE} is {OFF}"
        elif _is_memory_disk(self.folder):
            self.why = f"{self.folder} lies in memory ({VARIABLE} names another folder)"
        else:
            self._begin(self.folder)

    def _begin(self, folder: Path) -> None:
        try:
            if self.size > FREE_SHARE * disk.free_bytes(folder):
                space = f"take more than half of what is free in {folder}"
                self.why = f"in a file they would {space} ({VARIABLE} names another folder)"
                return
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (closed with this object)
            if self.size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, self.size)
        except OSError as error:
            self._disable(error)

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
            self._disable(error)

    def _disable(self, error: OSError) -> None:
        self.close()
        self.why = f"{self.folder} could not be written to: {error.strerror}"

    def place_text(self, how: str) -> str:
        """Where samples are read from, for a table. how: what has to be done each time where there is no
        file."""
        return (
            f"each time {how} again, because {self.why}"
            if self.why
            else f"from a file without a name in {self.folder}"
        )

    def samples(self, source: Source) -> Source:
        """The source that reads all samples from this file, or the original source without a file."""
        return (
            source
            if self._file is None
            else ScratchRows(source, NpyRows.from_file(self._file, self.shape, source.name))
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class ScratchRows(Source):
    """The samples of a source that have all been read once. copy: their copy in the scratch file; None in
    another process."""

    def __init__(self, source: Source, copy: NpyRows):
        self.source = source
        self.copy = copy
        self.name = source.name
        self.shape = source.shape
        self.source_dtype = source.source_dtype
        self.__dict__["survey"] = source.survey

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "copy": None}

    @property
    def read_size(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.source.read_size if self.copy is None else None

    def read(self, rows: np.ndarray) -> np.ndarray:
        return (self.copy or self.source).read(rows)

    def prefetch(self, rows: np.ndarray) -> None:
        (self.copy or self.source).prefetch(rows)


def scratch_folder() -> Path | None:
    """The folder for scratch files; None if they are disabled. Raises DataError (E402) if the environment
    names a missing folder."""
    setting = os.environ.get(VARIABLE, "")
    if setting == OFF:
        return None
    if setting and not Path(setting).is_dir():
        raise DataError(
            "E402",
            f"there is no folder {excerpt(setting)}, which {VARIABLE} names; make it, or unset {VARIABLE}.",
        )
    if setting or os.environ.get("TMPDIR"):
        return Path(setting or os.environ["TMPDIR"])
    return DEFAULT_FOLDER if os.access(DEFAULT_FOLDER, os.W_OK) else Path(tempfile.gettempdir())


def _is_memory_disk(folder: Path) -> bool:
    """Whether files in this folder take memory, as far as the system reports it."""
    try:
        number = os.stat(folder).st_dev
        mounts = [line.split() for line in MOUNT_TABLE.read_text().splitlines()]
    except OSError:
        return False
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(
        fields[2] == device and fields[fields.index("-") + 1] in ("tmpfs", "ramfs") for fields in mounts
    )
