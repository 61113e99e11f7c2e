"""Samples whose rows do not lie in their file one after another, as in Fortran order: read through a mapping of the file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.rows import Source
from unskew.errors import DataError


class Scattered(Source):
    """The rows of an array that lies in a file in any order.

    offset: of its first number. strides: bytes from one number to the next along each axis. kind: of its numbers. full: what they
    are divided by, None where they are taken as they are. Raises DataError (E402) without the file.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        strides: tuple[int, ...],
        *,
        shape: tuple[int, ...],
        kind: np.dtype[Any],
        full: int | None,
    ):
        self.path, self.name, self.offset, self.strides, self.shape = path, path.name, offset, strides, shape
        self.kind, self.full, self.came = kind, full, kind.newbyteorder("=") if full is None else Source.came
        self._open()
        self._stamp = self._now()

    def _open(self) -> None:
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115  (closed with this object)
        except FileNotFoundError:
            raise DataError("E402", f"there is no {self.path}.") from None
        self._x: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_file", "_x")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def read(self, rows: np.ndarray) -> np.ndarray:
        self._check()
        if self._x is None:
            memory = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._x = np.ndarray(self.shape, self.kind, memory, self.offset, self.strides)
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            x = self._x[rows].astype(np.float32, order="C")
        self._check()
        return x if self.full is None else np.divide(x, np.float32(self.full), out=x)

    def _now(self) -> tuple[int, int]:
        now = os.fstat(self._file.fileno())
        return now.st_size, now.st_mtime_ns

    def _check(self) -> None:
        """Raises DataError (E413) where the file is not what it was; one that is shorter than its mapping would end the process."""
        if self._now() != self._stamp:
            text = f"{self.path} has changed since it was checked"
            raise DataError("E413", f"{text}; leave data alone while they are trained on, and start the run again.")
