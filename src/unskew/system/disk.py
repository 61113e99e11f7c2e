"""Files and folders: names that are safe, writes that leave a file whole after a crash or on a full disk, and
locks.

Every file that unskew writes goes through `replace` (the whole file at once), `replace_unsynced` (where it
may be lost) or `AppendFile` (a file that only grows). Whole-file locks of the operating system end with the
process that holds them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

from unskew.errors import Paused, StateError, UsageError

AT_SITE = "setup.safetensors"
"""The file that tells a site's folder of a run from the coordinator's."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LONGEST_SLUG = 42
"""The most characters of a slug without its hash; the folder of a run also has its seed."""
_PART = r"[a-z][a-z0-9_]*(\([a-z_]+=[a-z0-9._]+(, ?[a-z_]+=[a-z0-9._]+)*\))?"
_PLAIN = re.compile(rf"{_PART}(\+{_PART})*")
"""Texts with unique slugs."""


def check_name(name: str) -> str:
    """The name, if it is valid for a folder. Raises UsageError (E109) otherwise."""
    if not _NAME.fullmatch(name):
        rule = "use at most 64 of a-z, 0-9, '.', '_' and '-', and begin with a letter or a digit"
        raise UsageError("E109", f"'{name}' is not a valid name: {rule}.")
    return name


def no_run(path: Path, lacks: str) -> StateError:
    """The error E117 for a folder that is not a run. lacks: the missing file."""
    hint = "Runs are folders under runs/."
    places = [f"{place}/{name}" for place in ("*", "runs/*") for name in (lacks, AT_SITE)]
    runs = [file.parent for place in places for file in path.glob(place)]
    if (path / AT_SITE).is_file():
        hint = "A site keeps it of a run: unskew site watch, unskew predict and unskew export take it."
    elif runs:
        hint = f"It holds {len(runs):,} runs; name one of them, such as {min(runs)}."
    elif (near := Path("runs") / path.name) != path and (near / lacks).is_file():
        hint = f"Did you mean {near}?"
    return StateError("E117", f"{path} is no run: it has no {lacks}. {hint}")


def slug(text: str) -> str:
    """A folder name for a method's text: `fedprox(mu=0.01)+fedrdn` -> `fedprox-mu-0.01-_fedrdn`. Of a file's
    path only the name is used.

    Different texts have different names: where characters were lost, the name ends in digits of a hash.
    """
    short = re.sub(r"(^|\+)[^+(]*/", r"\1", text)
    name = re.sub(r"[^a-z0-9._-]+", "-", short.lower().replace("+", "_")).strip("-_.")
    if _PLAIN.fullmatch(text) and len(name) <= _LONGEST_SLUG:
        return check_name(name)
    return check_name(
        f"{name[:_LONGEST_SLUG].strip('-_.')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}".lstrip("-")
    )


def replace(path: Path, data: bytes | str | Sequence[memoryview], keep: Path | None = None) -> None:
    """Replace the content of the file at `path` by `data`, which may be several buffers. After a crash the
    file has either its old or its new content.

    The data are written to a new file `<name>.<random>.part` in the same folder and synced, the file is
    renamed, and the folder is synced. A link at `path` is replaced, and its target stays as it is. Text is
    encoded as UTF-8.
    keep: a second path under which the old file, if there is one, remains.

    Raises Paused (E203) when the disk is full, and any other OSError unchanged. In both cases the old file
    stays.
    """
    content = data.encode() if isinstance(data, str) else data
    buffers = [content] if isinstance(content, bytes | bytearray) else content
    replace_piecewise(Path(path), buffers, sum(map(len, buffers)), keep)


def write_output(path: Path, data: bytes | str) -> None:
    """Write a file at a place that the user chose, as `replace` does, with missing folders.

    Pipes and devices, such as /dev/stdout, are written to instead of replaced. Raises UsageError (E161) if it
    cannot be written, Paused (E203) if the disk is full.
    """
    try:
        if path.is_dir():
            raise UsageError("E161", f"{path} is a folder; name a file, such as one in it.")
        if _is_stream(path):
            with full_disk_as_paused(path, len(data)), open(path, "ab") as stream:
                stream.write(data.encode() if isinstance(data, str) else data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
    except OSError as error:
        why = f"{path.parent} is no folder" if path.parent.is_file() else os.strerror(error.errno or 0)
        raise UsageError("E161", f"{path} cannot be written: {why}; name another.") from error


def _is_stream(path: Path) -> bool:
    """Whether the path is a device, a pipe or a shell's open file, which must not be replaced by a rename."""
    if str(path.absolute()).startswith(("/dev/fd/", "/dev/std", "/proc/self/fd/")):
        return True
    return path.exists() and not path.is_file() and not path.is_symlink()


def replace_piecewise(
    path: Path,
    buffers: Iterable[bytes | memoryview],
    size: int,
    keep: Path | None = None,
    sync: bool = True,
) -> None:
    """As `replace`, for content in pieces. size: the bytes of all pieces. sync: wait until they are on the
    disk; else call `sync_files` before another file refers to this one."""
    with full_disk_as_paused(path, size):
        with _new_file(path) as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            if sync:
                os.fsync(file.fileno())
            if keep and path.exists():
                os.link(path, second := _part_of(keep))
                os.replace(second, keep)
        if sync:
            _sync(path.parent)


def sync_files(paths: Sequence[Path]) -> None:
    """Wait until these files of one folder, and their names, are on the disk. Raises Paused (E203) if it is
    full."""
    with full_disk_as_paused(paths[0], 0):
        for path in (*paths, paths[0].parent):
            _sync(path)


def replace_unsynced(path: Path, data: bytes) -> None:
    """Replace the content of the file at `path` in one step, readable for this user only.

    Several threads may do so at once. After a power cut it may be missing or incomplete. Raises OSError, and
    then leaves no new file behind.
    """
    with _new_file(path, 0o600) as file:
        file.write(data)


@contextmanager
def _new_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that replaces the one at `path` at the end of the block, and is removed after an error."""
    part = _part_of(path)
    try:
        with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _part_of(path: Path) -> Path:
    """An unpredictable name in the folder of `path`, for the file that will replace it."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")


def refuse_link(path: str, flags: int) -> int:
    """An `opener` for files that grow. Raises OSError (ELOOP) if the path is a link. A file that has further
    names, such as in a copy made by `cp -l`, is replaced by a copy first."""
    with suppress(FileNotFoundError):
        facts = os.lstat(path)
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
            replace(Path(path), Path(path).read_bytes())
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def folder_below(path: Path) -> Path:
    """A folder in the folder of a run, which is made if it is missing.

    Raises UsageError (E161) if it is a link, through which files would land elsewhere.
    """
    if path.is_symlink():
        raise UsageError("E161", f"{path} is a link, and nothing is written through it; remove it first.")
    path.mkdir(parents=True, exist_ok=True)
    return path


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A new folder that gets the name `path` at the end of the block: complete, or not at all.

    The block writes its files with `replace`. Raises FileExistsError if `path` exists before or after the
    block, and any other OSError; the new folder is then removed.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "it exists already", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent))
    try:
        os.umask(mask := os.umask(0o077))  # it can only be asked by setting it
        part.chmod(0o777 & ~mask)
        yield part
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it exists already", str(path))
        part.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextmanager
def private_files() -> Iterator[None]:
    """Inside the block, new files are readable for this user only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def replace_private(path: Path, text: str) -> None:
    """As `replace`, for a file with mode 0600 from the start."""
    with private_files():
        replace(path, text)


class AppendFile:
    """A file that grows by lines during a run. It is opened at once and must be closed."""

    def __init__(self, path: Path, length: int | None = None):
        """Open or create the file. length: truncate it to this many bytes first; None: keep all.

        Raises Paused (E203) if the disk is full, OSError if the path is a link.
        """
        self.path = path
        with full_disk_as_paused(path, 0):
            self._file = open(path, "ab", buffering=0, opener=refuse_link)  # noqa: SIM115
        if length is not None:
            self._file.truncate(length)
        self.size = os.fstat(self._file.fileno()).st_size
        """The size of the file in bytes."""

    def add(self, lines: bytes | str) -> None:
        """Append all of `lines`, or nothing. Raises Paused (E203) if the disk is full."""
        content = lines.encode() if isinstance(lines, str) else lines
        written = 0
        try:
            with full_disk_as_paused(self.path, len(content)):
                while written < len(content):  # one write may take only a part of it
                    written += self._file.write(content[written:])
        except (OSError, Paused):
            with suppress(OSError):
                self._file.truncate(self.size)
            raise
        self.size += written

    def sync(self) -> None:
        """Wait until all lines are on the disk. Raises Paused (E203) if the disk is full."""
        with full_disk_as_paused(self.path, 0):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextmanager
def full_disk_as_paused(path: Path, size: int) -> Iterator[None]:
    """Turn the OSError of a full disk, or of an exhausted quota, into Paused (E203).

    path: the file to write. size: the bytes that it needs, 0 if unknown.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        free = os.statvfs(path.parent)
        needs = f"needs {_amount(size)}, " if size else ""
        space = f"{needs}{_amount(free.f_bavail * free.f_frsize)} free"
        raise Paused("E203", f"disk full: cannot write {path} ({space}).") from error


def is_full(error: BaseException) -> bool:
    """Whether this is the operating system's error for a full disk or an exhausted quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _amount(size: int) -> str:
    return f"{size:,} bytes" if size < 1_000_000 else f"{size / 1e6:,.1f} MB"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""The errors of the operating system where another process has the lock."""


def lock(file: IO[Any], wait: bool) -> None:
    """Lock an open file, waiting for others if `wait`; raises OSError with an errno of HELD if another has
    it."""
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
