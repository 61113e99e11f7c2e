"""NumPy archives, and the pictures packed in them, read without pickle; an error names the damaged file.

The archives of named sets are in the folder that the environment variable UNSKEW_DATA names.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError


class Archive(dict[str, np.ndarray]):
    """The arrays of one file by name; a missing one raises DataError (E401)."""

    def __init__(self, path: Path, arrays: Mapping[str, np.ndarray]):
        super().__init__(arrays)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise DataError(
            "E401", f"{self.path} lacks the array '{name}'; it holds {', '.join(self) or 'none'}."
        )

    def labels(self, name: str) -> np.ndarray:
        """An array of labels, int64."""
        return self[name].astype(np.int64, copy=False)

    def words(self, name: str) -> tuple[str, ...]:
        """An array of names."""
        return tuple(str(word) for word in self[name])

    def pictures(self, name: str, size: int) -> np.ndarray:
        """Pictures of size x size pixels, uint8 [N, size, size, 3].

        They are stored as vertical strips, each encoded as WebP or JPEG bytes; `NAME_off` holds the position
        of each strip. Raises DataError (E401) for bytes that are no pictures.
        """
        from PIL import Image

        stem = name.rpartition("_")[0]
        buffer, offsets = self[name], self[f"{stem}_off"]
        try:
            strips = [
                Image.open(io.BytesIO(buffer[a:b].tobytes())).convert("RGB")
                for a, b in pairwise(offsets.tolist())
            ]
            return np.concatenate([np.asarray(strip).reshape(-1, size, size, 3) for strip in strips])
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(
                "E401", f"{self.path}: pictures in '{name}' cannot be read: {error}. Copy it again."
            ) from error


def read_archive(path: Path) -> Archive:
    """The arrays of a file. Raises DataError: E402 for a missing file, E401 unless it is a whole archive
    of plain arrays that fits into memory."""
    try:
        with np.load(path, allow_pickle=False) as z:
            return Archive(path, {name: _plain_array(z, name, path) for name in z.files})
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except (DataError, PermissionError):
        raise
    except MemoryError as error:
        reason = f"{path} announces more than memory holds"
        raise DataError(
            "E401", f"{reason}: {error}. Save large arrays as .npy files in a folder, or copy it again."
        ) from error
    except Exception as error:  # NumPy and zipfile raise many kinds of error for damaged or encrypted files
        reason = str(error).rstrip(".")
        if "allow_pickle" in reason:
            reason = "it begins like none, so it is perhaps another kind of file"
        text = f"{path} is not a whole NumPy archive: {reason}"
        raise DataError("E401", f"{text}. Copy it, or save it, again.") from error


def _plain_array(z: Any, name: str, path: Path) -> np.ndarray:
    """An array of the archive."""
    try:
        content = z[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            "E401",
            f"{path}: the array '{name}' holds Python objects, which are never unpickled; save it as numbers,"
            f" or words as numpy.asarray({name}, dtype=str).",
        ) from None
    if not isinstance(content, np.ndarray):
        raise DataError("E401", f"{path}: '{name}' in it is no array; take it out, or save it again.")
    return content


class NamedArchive(Archive):
    """The archive of a named set. source: its origin. `more` in both methods: further fields of `Dataset`."""

    def __init__(self, archive: Archive, source: str):
        super().__init__(archive.path, archive)
        self.source = source

    def dataset(self, x: np.ndarray, x_test: np.ndarray, **more: Any) -> Dataset:
        """A set with a test part; labels are `y_train` and `y_test`."""
        y, y_test = self.labels("y_train"), self.labels("y_test")
        return Dataset(
            self.path.stem, x, y, x_test, y_test, self.words("classes"), source=self.source, **more
        )

    def images(self, part: str, size: int) -> np.ndarray:
        """The images of a part, uint8, from `x_PART` or the strips `PART_webp`."""
        return self[f"x_{part}"] if f"x_{part}" in self else self.pictures(f"{part}_webp", size)

    def split(self, x: np.ndarray, test: np.ndarray, columns: tuple[str, ...], **more: Any) -> Dataset:
        """A set in one piece. test: the test rows, bool [N]. Labels are `y`."""
        y = self.labels("y")
        train_columns, test_columns = ({name: self[name][rows] for name in columns} for rows in (~test, test))
        parts = (x[~test], y[~test], x[test], y[test])
        classes = self.words("classes")
        return Dataset(
            self.path.stem, *parts, classes, train_columns, test_columns, source=self.source, **more
        )


def archive_path(name: str) -> Path | None:
    """The archive of a named set on this machine, or None."""
    folder = os.environ.get("UNSKEW_DATA")
    path = Path(folder) / f"{name}.npz" if folder else None
    return path if path and path.exists() else None


def open_archive(name: str, source: str) -> NamedArchive:
    """The archive of a named set. Raises DataError: E402, with its origin, if it is missing, E401 if it is
    damaged."""
    if path := archive_path(name):
        return NamedArchive(read_archive(path), source)

    folder = os.environ.get("UNSKEW_DATA")
    reason = f"'{name}' is looked for in the folder UNSKEW_DATA, which is not set"
    if folder:
        reason = f"there is no {Path(folder) / name}.npz"
    remedy = f"make {name}.npz of it (unskew data get; its arrays: unskew explain docs/data-sets.md)"
    text = f"{reason}. Get it from {source}, {remedy}, and name its folder: export UNSKEW_DATA=FOLDER."
    raise DataError("E402", f"{text} The set 'digits' needs no file.")
