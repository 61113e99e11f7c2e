"""Files are written whole or not at all, synced before they count; a full disk is reported with bytes."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path

import pytest

from unskew.errors import Paused, UsageError
from unskew.records.record import Record
from unskew.system import disk


def fails(number: int, after: int = 0):
    """A system call that raises this error, from the call after the first `after` ones."""
    calls = 0

    def call(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fedavg", "fedavg"),
        ("fedprox(mu=0.01)+fedrdn", "fedprox-mu-0.01-_fedrdn"),
        ("mine/m.py", "m.py-[0-9a-f]{6}"),
    ],
)
def test_a_methods_folder_has_a_readable_name(text, name):
    assert re.fullmatch(name, disk.slug(text))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a/m.py", "b/m.py"),
        ("p(x=1)", "p(x=-1)"),
        ("p(x=(1, 2))", "p(x=[1, 2])"),
        ("fedprox(mu=0.1)+" * 4 + "fedrdn", "fedprox(mu=0.1)+" * 4 + "fedbn"),
    ],
)
def test_different_methods_have_different_folders(one, other):
    """U3: methods of which 48 characters or the files' names agree were taken for the same."""
    assert disk.slug(one) != disk.slug(other)


def test_a_replaced_file_is_synced_before_its_rename_and_its_folder_after(tmp_path, monkeypatch):
    done = []
    sync, rename = os.fsync, os.replace

    def synced(handle):
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        sync(handle)

    def renamed(source, target):
        done.append("rename")
        assert Path(source).read_bytes() == "né\n".encode()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    disk.replace(tmp_path / "a.txt", "né\n")
    assert done == ["file", "rename", "folder"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "né\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_names_the_bytes_needed(tmp_path, monkeypatch, number, call):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fails(number))
    with pytest.raises(Paused, match=r"^E203 .*a\.bin \(needs 12,345 bytes, [\d,.]+ MB free\)\.$"):
        disk.replace(path, b"x" * 12_345)
    with pytest.raises(Paused, match=r"needs 2\.5 MB, "):
        disk.replace(path, b"x" * 2_500_000)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_the_old_file_stays_under_another_name(tmp_path, monkeypatch):
    path, before = tmp_path / "a", tmp_path / "a.before"
    for text in ("1", "2", "3"):
        disk.replace(path, text, keep=before)
    assert (path.read_text(), before.read_text()) == ("3", "2")
    monkeypatch.setattr(os, "fsync", fails(errno.ENOSPC))
    with pytest.raises(Paused):
        disk.replace(path, "4", keep=before)
    assert (path.read_text(), before.read_text()) == ("3", "2")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_grows_is_cut_to_a_length_and_synced(tmp_path, monkeypatch):
    path, synced = tmp_path / "rows", []
    path.write_bytes(b"one\ntwo\nthr")
    grows = disk.AppendFile(path, 8)
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), sync(handle)))
    grows.add("drei\n")
    grows.sync()
    assert len(synced) == 1
    assert (grows.size, path.read_bytes()) == (13, b"one\ntwo\ndrei\n")
    grows.close()
    whole = disk.AppendFile(path)
    assert whole.size == 13
    whole.close()


class Filling:
    """A disk with room for some bytes: a write takes what fits, and the next fails."""

    def __init__(self, file, room: int):
        self.file, self.room = file, room

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(content[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_lines_that_do_not_fit_are_not_half_written(tmp_path):
    path = tmp_path / "rows"
    grows = disk.AppendFile(path)
    grows.add("first\n")
    grows._file = Filling(grows._file, 4)
    with pytest.raises(Paused, match=r"E203 .*needs 1,001 bytes"):
        grows.add("x" * 1000 + "\n")
    assert path.read_text() == "first\n"
    grows._file.room = 100
    grows.add("second\n")
    assert path.read_text() == "first\nsecond\n"
    grows.close()


def test_a_record_tells_how_many_bytes_its_rows_need_and_closes_on_a_full_disk(tmp_path, monkeypatch):
    """R10: the sentence said 1.0 MB whatever was written."""
    record = Record(tmp_path)
    row = {"t": 1, "code": "E301", "text": "y" * 3000}
    events = record.lines["events"]._file
    events._file = Filling(events._file, 10)
    with pytest.raises(Paused, match=r"cannot write .*events\.jsonl \(needs 3,0\d\d bytes, "):
        record.add("events", [row])
    monkeypatch.setattr(os, "fsync", fails(errno.ENOSPC))
    with pytest.raises(Paused, match=r"metrics\.jsonl \([\d.,]+ (MB|bytes) free\)"):
        record.sync()
    with pytest.raises(Paused, match=r"measures\.json "):
        record.keep_measures({"a": [1]})
    record.close()
    assert not (tmp_path / "measures.json").exists()
    assert (tmp_path / "events.jsonl").read_text() == ""


def test_what_is_asked_for_goes_into_a_pipe_or_a_device(tmp_path):
    """`--out /dev/stdout` took the device away where it could, and was refused elsewhere."""
    read, write = os.pipe()
    disk.write_output(Path(f"/dev/fd/{write}"), "a,b\n")
    os.close(write)
    assert os.read(read, 99) == b"a,b\n"
    os.close(read)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    disk.write_output(tmp_path / "pipe", b"xy")
    assert os.read(reader, 99) == b"xy"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    with open(tmp_path / "opened", "ab", buffering=0) as opened:  # as a shell opens what stands behind >>
        opened.write(b"before ")
        disk.write_output(Path(f"/dev/fd/{opened.fileno()}"), "after")
    assert (tmp_path / "opened").read_text() == "before after"
    before = os.stat(os.devnull)
    disk.write_output(Path(os.devnull), b"xy")
    assert os.stat(os.devnull).st_ino == before.st_ino
    if os.path.isdir("/dev/shm"):  # where files are files: a second table stood behind the first one
        with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
            for text in ("first", "2nd"):
                disk.write_output(Path(shared) / "out.csv", text)
                assert (Path(shared) / "out.csv").read_text() == text
    with pytest.raises(UsageError, match=r"E161 .* cannot be written: File name too long"):
        disk.write_output(tmp_path / ("y" * 300), "")
    if os.path.exists("/dev/full"):
        with pytest.raises(Paused, match="E203 disk full: cannot write /dev/full"):
            disk.write_output(Path("/dev/full"), "x")
