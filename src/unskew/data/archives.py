"""NumPy archives and the pictures packed in them, read without pickle; damage is named with its file."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from unskew.errors import DataError


class Archive(dict[str, np.ndarray]):
    """The arrays of one file by name; asking for one it lacks is a DataError (E401)."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]):
        super().__init__(arrays)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise DataError("E401", f"{self.path} lacks the array '{name}'; it holds {', '.join(self) or 'none'}.")

    def labels(self, name: str) -> np.ndarray:
        return self[name].astype(np.int64, copy=False)

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(str(word) for word in self[name])

    def pictures(self, name: str, size: int) -> np.ndarray:
        """Vertical strips of size x size pictures as encoded bytes, cut at NAME_off: uint8 [N, size, size, 3]."""
        from PIL import Image

        stem = name.rpartition("_")[0]
        buffer, offsets = self[name], self[f"{stem}_off"]
        try:
            strips = [
                Image.open(io.BytesIO(buffer[a:b].tobytes())).convert("RGB") for a, b in pairwise(offsets.tolist())
            ]
            return np.concatenate([np.asarray(strip).reshape(-1, size, size, 3) for strip in strips])
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(
                "E401", f"{self.path}: pictures in '{name}' cannot be read: {error}. Copy it again."
            ) from error


def read(path: Path) -> Archive:
    """Raises DataError: E402 if there is no such file, E401 if it is no whole archive of plain arrays."""
    try:
        with np.load(path, allow_pickle=False) as z:
            return Archive(path, {n: z[n] for n in z.files})
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
        TypeError,
    ) as error:
        size = path.stat().st_size if path.is_file() else 0
        why = "it holds Python objects, or is no archive at all" if "(object)" in str(error) else str(error).rstrip(".")
        raise DataError(
            "E401", f"{path} ({size:,} bytes) is not a whole NumPy archive: {why}. Copy it, or save it, again."
        ) from error


def place(name: str) -> Path | None:
    """Where a named set lies, or None."""
    here = os.environ.get("UNSKEW_DATA")
    path = Path(here) / f"{name}.npz" if here else None
    return path if path and path.exists() else None


def named(name: str, source: str) -> Archive:
    """The archive of a named set. Raises DataError (E402) that says where to get it."""
    found = place(name)
    if found:
        return read(found)
    here = os.environ.get("UNSKEW_DATA")
    why = (
        f"there is no {Path(here) / name}.npz"
        if here
        else f"'{name}' is looked for in the folder UNSKEW_DATA, which is not set"
    )
    raise DataError(
        "E402",
        f"{why}. Get it from {source}, pack it as {name}.npz (docs/data.md says which arrays), and point to its folder: "
        f"export UNSKEW_DATA=/path/to/folder. The set 'digits' needs no file.",
    )
