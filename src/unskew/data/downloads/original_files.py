"""The original files of a data set: of a folder, a zip or tar archive, a single file, or Parquet files.

Files are read into memory one at a time, and nothing is unpacked to disk.

Hugging Face's hub stores sets of images as Parquet files by split, train-00000-of-00001.parquet and so on,
with a column of images, `{"bytes": ..., "path": ...}`, and one of labels; the schema names the classes.
Nothing is downloaded, and no path in a file is opened.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from unskew.data.files.cells import missing
from unskew.data.parquet.row_decoding import read_column_files
from unskew.data.parquet.table import ShardTable, read_table
from unskew.errors import DataError

READ_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    NotImplementedError,
)
"""The errors that readers of archives raise for damaged and encrypted ones."""


@dataclass(frozen=True)
class Files:
    """Files by their names, with / between folders. place: name of the archive, for messages. reading:
    functions that return the bytes."""

    place: str
    reading: Mapping[str, Callable[[], bytes]]

    def named(self, name: str) -> str | None:
        """The file with a path that ends in this name, with or without .gz, nearest to the top; None without
        one.

        Raises DataError (E401) if two are equally near.
        """
        ending = PurePosixPath(name).parts
        matches = [
            n for n in self.reading if PurePosixPath(n.removesuffix(".gz")).parts[-len(ending) :] == ending
        ]
        matches.sort(key=lambda n: (n.count("/"), n.endswith(".gz"), n))
        depths = {n.removesuffix(".gz") for n in matches if n.count("/") == matches[0].count("/")}
        if len(depths) > 1:
            raise DataError(
                "E401", f"{self.place} holds {name} twice: {', '.join(sorted(depths)[:2])}; name one folder."
            )
        return matches[0] if matches else None

    def read(self, name: str) -> bytes:
        """The content of the file that `named` finds, decompressed if it is gzipped.

        Raises DataError: E401 if there is none or it is damaged.
        """
        place = self.named(name)
        if place is None:
            raise DataError("E401", f"{self.place} holds no file {name}; is it the right archive, and whole?")
        try:
            content = self.reading[place]()
            return gzip.decompress(content) if place.endswith(".gz") else content
        except READ_ERRORS as error:
            raise _damage_error(f"{self.place}: {place}", error) from error


def open_files(path: Path) -> Files:
    """The files of a folder or an archive, or a single other file.

    Raises DataError: E402 for a missing path, E401 for a damaged archive.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return Files(str(path), {file.relative_to(path).as_posix(): file.read_bytes for file in files})
    if not path.is_file():
        raise DataError("E402", f"there is no {path}.")
    try:
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            archive = tarfile.open(path)  # noqa: SIM115  (its members are read later)
            members = {m.name: m for m in archive if m.isreg()}
            return Files(str(path), {n: lambda m=m: _read_member(archive, m) for n, m in members.items()})
        if zipfile.is_zipfile(path) and path.suffix != ".npz":
            return open_zip(path.read_bytes(), str(path))
    except READ_ERRORS as error:
        raise _damage_error(str(path), error) from error
    return Files(str(path), {path.name: path.read_bytes})


def open_zip(content: bytes, place: str) -> Files:
    """The files of a zip archive. Raises READ_ERRORS."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    members = [m for m in archive.infolist() if not m.is_dir()]
    return Files(place, {m.filename: lambda m=m: archive.read(m) for m in members})


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    content = file.read() if file else b""
    if len(content) != member.size:
        raise EOFError(f"{member.name} ends after {len(content):,} of {member.size:,} bytes")
    return content


def _damage_error(place: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{place} is damaged or not what its name says: {reason}. Download it again.")


@dataclass(frozen=True)
class Hub:
    """The description of a set on the hub. image, label: columns. columns: facts by which clients are
    formed, our names to the hub's."""

    repository: str
    image: str = "image"
    label: str = "label"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HubSamples:
    """All samples of a set on the hub, the training samples first. x: uint8 [N, 1 or 3, H, W]. test: the
    test samples, bool [N], None without any. classes: the files' class names, () without any."""

    x: np.ndarray
    y: np.ndarray
    test: np.ndarray | None
    columns: Mapping[str, np.ndarray]
    classes: tuple[str, ...]


def holds_parquet(path: Path) -> bool:
    """Whether a path is a Parquet file, or a folder with one."""
    return path.suffix == ".parquet" or next(path.rglob("*.parquet"), None) is not None


def read_hub(path: Path, hub: Hub, size: int | None) -> HubSamples:
    """The samples in the Parquet files of a set. size: side to which images are resized; None keeps their
    size.

    Raises DataError: E401 for another set, and the errors of `read_table`.
    """
    table = read_table(path)
    for name, kind in {hub.image: "packed", hub.label: "number", **dict.fromkeys(hub.columns, "")}.items():
        if name not in table.columns or (kind and table.columns[name].kind != kind):
            raise DataError("E401", f"{path} is not {hub.repository}: it lacks a column {name} of its kind.")
    images = read_column_files(table, hub.image, lambda file, place: _pixels(file, place, size))
    labels = table.whole_column(hub.label)
    if len({image.shape for image in images}) != 1 or labels.dtype.kind != "i":
        raise DataError(
            "E401",
            f"{path} is not {hub.repository}: its images differ in size, or a label is no whole number.",
        )
    columns = {ours: _words(table, hubs) for hubs, ours in hub.columns.items()}
    return HubSamples(np.stack(images), labels, table.test(), columns, table.classes(hub.label) or ())


def _words(table: ShardTable, column: str) -> np.ndarray:
    values = table.whole_column(column)
    if missing(values).any():
        raise DataError("E401", f"{table.name}: column {column} lacks values; download it again.")
    return values.astype(str)


def _pixels(file: io.BytesIO, place: str, size: int | None) -> np.ndarray:
    """An image as uint8 [1 or 3, H, W]."""
    try:
        with Image.open(file) as image:
            plain = image.convert("L" if image.mode in ("1", "L") else "RGB")
    except READ_ERRORS as error:
        raise DataError("E401", f"{place} is no image: {error}. Download it again.") from error
    values = np.asarray(plain.resize((size, size), Image.Resampling.BICUBIC) if size else plain)
    return values[None] if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))
