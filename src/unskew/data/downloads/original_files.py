"""The original files of a data set, in a folder, a zip or tar archive or a single file, and the recipe that
makes samples of them. The recipes are in `recipes/`, one file for each original format.

Files are read into memory one at a time, and nothing is unpacked to disk.
Letters: N samples.
"""

from __future__ import annotations

import gzip
import importlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from unskew.errors import DataError, UsageError, excerpt, suggestion
from unskew.system import python_files

READ_ERRORS = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, RuntimeError, ValueError)
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
class OriginalFiles:
    """The files that the user has downloaded. name: name of the requested set."""

    path: Path
    name: str

    @property
    def files(self) -> Files:
        """The opened files. Raises DataError as `open_files` does."""
        return open_files(self.path)


@dataclass(frozen=True)
class OriginalSamples:
    """The samples of a set's original files.

    x, y: [N, ...] and int64 [N]. x_test, y_test: the set's test part, or None. classes: names, by number.
    columns: facts by which clients are formed, (of training samples, of test samples or None). notes: remarks
    on omissions.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None
    y_test: np.ndarray | None
    classes: tuple[str, ...]
    columns: Mapping[str, tuple[np.ndarray, np.ndarray | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """The conversion of a data set. what, source, licence: for its card; licence "" if the source states
    none. expects: the files that --from takes.

    read: makes the samples from the files; raises DataError (E401, E402). files: published SHA-256 of
    original files by name, or `md5:...`, which is compared after a download alone, because other versions
    have the same name. addresses: of all files, if they can be downloaded; each has a digest in `files`.
    """

    what: str
    source: str
    licence: str
    expects: str
    read: Callable[[OriginalFiles], OriginalSamples]
    files: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()


@cache
def recipes() -> dict[str, Recipe]:
    """The recipe of every set, sorted by name."""
    rooms = [
        importlib.import_module(f"unskew.data.downloads.recipes.{path.stem}")
        for path in python_files.module_files(Path(__file__).parent / "recipes")
    ]
    return dict(sorted((name, recipe) for room in rooms for name, recipe in room.SETS.items()))


def recipe_of(name: str) -> Recipe:
    """The recipe of a set. Raises UsageError (E125) for an unknown name."""
    by_name = recipes()
    if name not in by_name:
        near, known = suggestion(name, by_name), ", ".join(by_name)
        raise UsageError("E125", f"unskew data get knows no {excerpt(name)}.{near} Known: {known}.")
    return by_name[name]
