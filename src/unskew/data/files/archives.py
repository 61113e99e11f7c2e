"""NumPy archives, and the pictures packed in them, read without pickle; what other archives unpack to, within
bounds. An error names the damaged file.

The archives of named sets are in the folder that the environment variable UNSKEW_DATA names.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.dataset import Dataset
from unskew.data.storage.rows_on_disk import select_samples
from unskew.errors import DataError

IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM")
"""Pillow's names of the formats that are read; others, such as EPS, start further programs."""


def open_image(file: Path | IO[bytes]) -> Any:
    """Pillow's image of a file in one of IMAGE_FORMATS, by its first bytes. Raises OSError for others."""
    from PIL import Image

    return Image.open(file, formats=IMAGE_FORMATS)


SMALL_SIZE, MOST_RATIO = 1 << 30, 200
"""A file may announce this many bytes, or this many times its own size."""
PIECE = 1 << 20
LONGEST_WORD = 1 << 18
"""Maximal length of a word in an array of words, in bytes."""


class Archive(Mapping[str, np.ndarray]):
    """The arrays of one .npz file by name, each read without pickle when it is first asked for.

    shapes: of all arrays by name, as their headers announce them.
    Raises DataError: E402 for a missing file; E401 unless it is a whole archive of plain arrays that fits
    into memory, for sizes that no set has, and for an array that it lacks.
    """

    def __init__(self, path: Path):
        self.path = path
        with _opened(path) as z:
            self.shapes = _announced_shapes(z, path)
        self._read = dict[str, np.ndarray]()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            held = ", ".join(self.shapes) or "none"
            raise DataError("E401", f"{self.path} lacks the array '{name}'; it holds {held}.")
        if name not in self._read:
            with _opened(self.path) as z:
                self._read[name] = z[name]
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self.shapes else default

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
        stem = name.rpartition("_")[0]
        buffer, offsets = self[name], self[f"{stem}_off"]
        with damage_as_error(f"{self.path}: '{name}'", "pictures", "copy it again"):
            strips = [
                open_image(io.BytesIO(buffer[a:b].tobytes())).convert("RGB")
                for a, b in pairwise(offsets.tolist())
            ]
            return np.concatenate([np.asarray(strip).reshape(-1, size, size, 3) for strip in strips])


def most_unpacked(size: int) -> int:
    """The most bytes to which a file of this size may unpack."""
    return max(SMALL_SIZE, MOST_RATIO * size)


def check_unpacked(length: int, place: object, size: int) -> None:
    """Raises DataError (E401) for an unpacked length that is far more than the file's size makes likely, both
    in bytes. place: its name, for the message."""
    if length > (limit := most_unpacked(size)):
        fault = f"{place}: its {size:,} bytes unpack to more than {limit:,}"
        raise DataError("E401", f"{fault}; unpack it yourself if you trust it.")


def read_unpacked(file: IO[bytes] | io.BufferedIOBase, place: object, size: int) -> bytes:
    """The content of a compressed file, read no further than `check_unpacked` allows."""
    content = bytearray()
    while piece := file.read(PIECE):
        content += piece
        check_unpacked(len(content), place, size)
    return bytes(content)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """NumPy's view of an archive. Raises DataError as `Archive` does."""
    remedy = "copy or save it again: words with dtype=str, large arrays as .npy files in a folder"
    with damage_as_error(path, "a NumPy archive", remedy), np.load(path, allow_pickle=False) as z:
        yield z


def _announced_shapes(z: Any, path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each array, of which nothing but the header is read."""
    shapes, total = dict[str, tuple[int, ...]](), 0
    for entry in z.zip.infolist():
        name = entry.filename.removesuffix(".npy")
        with z.zip.open(entry) as file:
            if file.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
                raise DataError("E401", f"{path}: '{name}' in it is no array; take it out, or save it again.")
            file.seek(0)
            first_version = npy.read_magic(file) == (1, 0)
            read = npy.read_array_header_1_0 if first_version else npy.read_array_header_2_0
            shape, _, dtype = read(file)
        if shape and dtype.kind in "SU" and dtype.itemsize > LONGEST_WORD:
            fault = f"the words of the array '{name}' take {dtype.itemsize:,} bytes each"
            raise DataError("E401", f"{path}: {fault}; save it with shorter ones.")
        total += max(entry.file_size, math.prod(shape) * dtype.itemsize)
        shapes[name] = shape
    if total > most_unpacked(path.stat().st_size):
        fault = f"its {path.stat().st_size:,} bytes unpack to {total:,}"
        raise DataError("E401", f"{path}: {fault}; save large arrays as .npy files in a folder.")
    return shapes


class NamedArchive(Archive):
    """The archive of a named set. source: its origin. `more` in both methods: further fields of `Dataset`."""

    def __init__(self, path: Path, source: str):
        super().__init__(path)
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
        """The Dataset of samples x [N, ...] and the archive's labels `y`. test: whether a row is a test row,
        bool [N]. columns: the arrays of the archive that describe rows."""
        y = self.labels("y")
        train_columns, test_columns = ({name: self[name][rows] for name in columns} for rows in (~test, test))
        parts = (select_samples(x, ~test), y[~test], select_samples(x, test), y[test])
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
        return NamedArchive(path, source)

    folder = os.environ.get("UNSKEW_DATA")
    reason = f"'{name}' is looked for in the folder UNSKEW_DATA, which is not set"
    if folder:
        reason = f"there is no {Path(folder) / name}.npz"
    remedy = f"make {name}.npz of it (unskew data get; its arrays: unskew explain docs/data-sets.md)"
    text = f"{reason}. Get it from {source}, {remedy}, and name its folder: export UNSKEW_DATA=FOLDER."
    raise DataError("E402", f"{text} The set 'digits' needs no file.")
