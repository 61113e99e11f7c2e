"""The original files of a data set: of a folder, a zip or tar archive, a single file, or Parquet files.

Files are read into memory one at a time, and nothing is unpacked to disk. Archives come from elsewhere, so
links and names that lead out of an archive are refused, and so is content that unpacks to far more than an
archive of its size can hold.

Hugging Face's hub stores sets of images as Parquet files by split, train-00000-of-00001.parquet and so on,
with a column of images, `{"bytes": ..., "path": ...}`, and one of labels; the schema names the classes.
Nothing is downloaded, and no path in a file is opened.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from unskew.data.files.archives import most_unpacked
from unskew.errors import DataError, excerpt

LARGEST_ARCHIVE = 16 << 30
"""Maximal unpacked size of one archive, in bytes."""
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

        Raises DataError: E401 if there is none or it is refused, E401 for a damaged one.
        """
        place = self.named(name)
        if place is None:
            raise DataError("E401", f"{self.place} holds no file {name}; is it the right archive, and whole?")
        try:
            content = self.reading[place]()
            return _gunzip(content, f"{self.place}: {place}") if place.endswith(".gz") else content
        except READ_ERRORS as error:
            raise _damage_error(f"{self.place}: {place}", error) from error


def open_files(path: Path) -> Files:
    """The files of a folder or an archive, or a single other file.

    Raises DataError: E402 for a missing path, E401 for a damaged archive, E401 for one that is refused.
    """
    if path.is_dir():
        return Files(str(path), _open_folder(path))
    if not path.is_file():
        raise DataError("E402", f"there is no {path}.")
    try:
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            return _open_tar(path)
        if zipfile.is_zipfile(path) and path.suffix != ".npz":
            return open_zip(path.read_bytes(), str(path))
    except READ_ERRORS as error:
        raise _damage_error(str(path), error) from error
    return Files(str(path), {path.name: path.read_bytes})


def open_zip(content: bytes, place: str) -> Files:
    """The files of a zip archive. Raises DataError (E401) for one that is refused, and READ_ERRORS."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    members = [m for m in archive.infolist() if not m.is_dir()]
    for m in members:
        _check_name(m.filename, place)
        if stat.S_ISLNK(m.external_attr >> 16):
            raise _refusal(place, f"its member {excerpt(m.filename)} is a link")
    _check_size(sum(m.file_size for m in members), len(content), place)
    return Files(place, {m.filename: lambda m=m: archive.read(m) for m in members})


def _open_tar(path: Path) -> Files:
    """The files of a tar archive; members are checked one by one before they are unpacked."""
    archive = tarfile.open(path)  # noqa: SIM115  (its members are read later)
    size, total = path.stat().st_size, 0
    members: dict[str, tarfile.TarInfo] = {}
    while (m := archive.next()) is not None:
        _check_name(m.name, str(path))
        if not (m.isreg() or m.isdir()):
            raise _refusal(str(path), f"its member {excerpt(m.name)} is a link or a device")
        total += m.size
        _check_size(total, size, str(path))
        if m.isreg():
            members[m.name] = m
    return Files(str(path), {name: lambda m=m: _read_member(archive, m) for name, m in members.items()})


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    content = file.read() if file else b""
    if len(content) != member.size:
        raise EOFError(f"{member.name} ends after {len(content):,} of {member.size:,} bytes")
    return content


def _open_folder(root: Path) -> dict[str, Callable[[], bytes]]:
    """The regular files below a folder, without links that lead out of it; the hub stores files as links
    within a folder."""
    inside = root.resolve()
    reading: dict[str, Callable[[], bytes]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and (not path.is_symlink() or path.resolve().is_relative_to(inside)):
                reading[path.relative_to(root).as_posix()] = path.read_bytes
    return dict(sorted(reading.items()))


def _gunzip(content: bytes, place: str) -> bytes:
    limit = min(LARGEST_ARCHIVE, most_unpacked(len(content)))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        result = file.read(limit + 1)
    _check_size(len(result), len(content), place)
    return result


def _check_name(name: str, place: str) -> None:
    if name.startswith("/") or ".." in PurePosixPath(name.replace("\\", "/")).parts or ":" in name[:3]:
        raise _refusal(place, f"its member {excerpt(name)} leads out of it")


def _check_size(total: int, archive_size: int, place: str) -> None:
    if total > min(LARGEST_ARCHIVE, most_unpacked(archive_size)):
        raise _refusal(place, f"its {archive_size:,} bytes unpack to {total:,} or more")


def _refusal(place: str, reason: str) -> DataError:
    return DataError(
        "E401", f"{place} is refused: {reason}, as no archive of a data set does. Download it again."
    )


def _damage_error(place: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError("E401", f"{place} is damaged or not what its name says: {reason}. Download it again.")


LARGEST_IMAGE = 4096 * 4096
"""Maximal number of pixels of an image."""
_SPLIT_NAME = re.compile(r"(train|test)(-\d+-of-\d+.*)?\.parquet")


@dataclass(frozen=True)
class Hub:
    """The description of a set on the hub. image, label: columns. columns: facts by which clients are
    formed, our names to the hub's."""

    repository: str
    image: str = "image"
    label: str = "label"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HubSplit:
    """The content of one split. x: uint8 [N, 1 or 3, H, W]. classes: the file's class names, () without
    any."""

    x: np.ndarray
    y: np.ndarray
    columns: Mapping[str, np.ndarray]
    classes: tuple[str, ...]


def are_parquet(files: Files) -> bool:
    """Whether these are Parquet files."""
    return any(name.endswith(".parquet") for name in files.reading)


def read_splits(files: Files, hub: Hub, size: int | None) -> dict[str, HubSplit]:
    """The split "train", and "test" if there is one. size: side to which images are resized; None keeps their
    size.

    Raises DataError: E401 for files that cannot be read, or without pyarrow; E401 for another set.
    """
    names: dict[str, list[str]] = {}
    for name in sorted(files.reading):
        if match := _SPLIT_NAME.fullmatch(PurePosixPath(name).name):
            names.setdefault(match[1], []).append(name)
    if "train" not in names:
        text = (
            f"{files.place} holds no train-*.parquet; give the folder into which {hub.repository} was"
            " downloaded"
        )
        raise DataError("E401", f"{text}.")
    folders = {PurePosixPath(name).parent for several in names.values() for name in several}
    if len(folders) > 1:
        raise DataError(
            "E401",
            f"{files.place} holds several sets, {', '.join(sorted(map(str, folders))[:2])}; name one folder.",
        )
    return {split: _read_split(files, several, hub, size) for split, several in names.items()}


def _read_split(files: Files, names: list[str], hub: Hub, size: int | None) -> HubSplit:
    parts = [_read_columns(files, name, hub) for name in names]
    images: list[np.ndarray] = []
    for name, (table, _) in zip(names, parts):
        images += _decode_column(table[hub.image], size, f"{files.place}: {name}")
    if len({image.shape for image in images}) > 1:
        raise DataError(
            "E401",
            f"{files.place}: images of {names[0]} have different sizes, which {hub.repository} has not.",
        )
    columns = {
        ours: np.array([str(v) for table, _ in parts for v in table[hubs]])
        for hubs, ours in hub.columns.items()
    }
    labels = [label for table, _ in parts for label in table[hub.label]]
    if not images or not all(type(label) is int for label in labels):
        raise DataError(
            "E401", f"{files.place}: {names[0]} does not hold one whole number as label for each image."
        )
    return HubSplit(np.stack(images), np.array(labels, np.int64), columns, parts[0][1])


def _read_columns(files: Files, name: str, hub: Hub) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
    """(the needed columns, the names of the classes) of one file."""
    place = f"{files.place}: {name}"
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError("E401", f"reading {place} needs pyarrow; pip install 'unskew[tables]'.") from None
    try:
        file = parquet.ParquetFile(io.BytesIO(files.reading[name]()))
        columns = [hub.image, hub.label, *hub.columns]
        lacking = [column for column in columns if column not in file.schema_arrow.names]
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        if lacking or size > LARGEST_ARCHIVE:
            reason = f"has no column {lacking[0]}" if lacking else f"unpacks to {size:,} bytes"
            raise DataError("E401", f"{place} {reason}, so it is not {hub.repository}; download it again.")
        return file.read(columns=columns).to_pydict(), _schema_classes(
            file.schema_arrow.metadata or {}, hub.label
        )
    except DataError:
        raise
    except Exception as error:  # pyarrow raises many kinds of error for damaged files
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError("E401", f"{place} cannot be read as Parquet: {reason}. Download it again.") from error


def _schema_classes(metadata: Mapping[bytes, bytes], label: str) -> tuple[str, ...]:
    """The class names in the schema's metadata, () without any."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def _decode_column(cells: list[Any], size: int | None, place: str) -> Iterator[np.ndarray]:
    """Each image as uint8 [1 or 3, H, W]."""
    for i, cell in enumerate(cells):
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if not isinstance(content, bytes):
            raise DataError(
                "E401", f"{place}: row {i} holds no image of its own; download the Parquet files, not a list."
            )
        try:
            with Image.open(io.BytesIO(content)) as image:
                if image.width * image.height > LARGEST_IMAGE:
                    raise DataError(
                        "E401", f"{place}: the image of row {i} has {image.width} x {image.height} pixels."
                    )
                plain = image.convert("L" if image.mode in ("1", "L") else "RGB")
                plain = plain.resize((size, size), Image.Resampling.BICUBIC) if size else plain
                values = np.asarray(plain)
        except READ_ERRORS as error:
            raise DataError(
                "E401", f"{place}: the image of row {i} is damaged: {error}. Download it again."
            ) from error
        yield values[None] if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))
