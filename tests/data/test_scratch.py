"""Samples of Parquet that do not fit into memory are unpacked once, into a file that nobody else can reach.

Likely mistakes: a disk without room, a temporary folder that lies in memory, an environment variable that
names no folder. What
others may do: put a file of theirs in its place, damage it, fill the disk while it is written.
"""

import errno
import os
import pickle
import stat
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import unskew
from unskew import data
from unskew.data.parquet.row_groups import RowGroups
from unskew.data.storage import scratch
from unskew.data.storage.sample_rows import is_streamed
from unskew.data.storage.scratch import ScratchRows
from unskew.errors import DataError

from . import arrow
from .test_parquet import png

TEMPORARY = tempfile.TemporaryFile
RNG = np.random.default_rng(0)
N = 60
LISTS = RNG.random((N, 2, 3), dtype=np.float32)
SETTINGS = {"skew": "dirichlet:0.5", "clients": 3, "rounds": 2, "epochs": 1, "batch": 8, "model": "mlp"}


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """A path of lists, too many for memory from when `little` is called, and the folder for copies."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(ParquetFile=arrow.ParquetFile))
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("UNSKEW_SCRATCH", str(folder))
    monkeypatch.setattr(scratch, "MOUNT_TABLE", tmp_path / "none")
    arrow.write(tmp_path / "x.parquet", columns())
    return tmp_path / "x.parquet"


def columns():
    form = "fixed_size_list<element: fixed_size_list<element: float>[3]>[2]"
    return {"x": (form, LISTS.tolist()), "y": ("int64", [0, 1, 2] * 20)}


@pytest.fixture
def little(monkeypatch):
    def call():
        monkeypatch.setattr("unskew.data.samples.memory_budget.usable_memory", lambda: 1000)
        monkeypatch.setattr("unskew.data.parquet.row_groups.usable_memory", lambda: 400_000)

    return call


def told(read):
    return next(text for _, text in read.intake.notes if "read when they are wanted" in text)


def test_each_row_group_is_unpacked_once_and_training_has_the_same_bits(parquet, little):
    whole, result = data.read(parquet), unskew.run("fedavg", parquet, **SETTINGS)
    little()
    read = data.read(parquet)
    assert isinstance(read.x.source, ScratchRows)
    assert read.x.source.read_size is None
    assert np.array_equal(read.x[:], whole.x)
    assert np.array_equal(read.x_test[:], whole.x_test)
    assert told(read).endswith(f"; from a file without a name in {parquet.parent}/scratch")
    arrow.ParquetFile.opened = 0
    other = unskew.run("fedavg", parquet, **SETTINGS)
    assert (other.digest, other.scores()) == (result.digest, result.scores())
    assert (
        arrow.ParquetFile.opened < 30
    )  # 9 row groups: the footer, the labels, the first row, the samples once
    before = arrow.ParquetFile.opened
    assert np.array_equal(read.x[RNG.permutation(40)].shape, (40, 2, 3))
    assert arrow.ParquetFile.opened == before


def test_images_are_decoded_once(parquet, little, monkeypatch):
    files = [{"bytes": png(i), "path": None} for i in range(N)]
    arrow.write(
        parquet, {"image": ("struct<bytes: binary, path: string>", files), "label": ("int64", [0, 1] * 30)}
    )
    whole = data.read(parquet, size=8)
    little()
    read = data.read(parquet, size=8)
    monkeypatch.setattr("unskew.data.parquet.row_decoding.FileForm.decode_row", None)
    assert np.array_equal(read.x[:], whole.x)


def test_the_file_has_no_name_and_only_its_user_may_read_it(parquet, little):
    little()
    one, other = data.read(parquet).x.source, data.read(parquet).x.source
    facts = [os.fstat(source.copy._file._number) for source in (one, other)]
    assert facts[0].st_ino != facts[1].st_ino
    assert all(
        f.st_nlink == 0 and stat.S_IMODE(f.st_mode) & 0o077 == 0 and f.st_size == LISTS.nbytes for f in facts
    )
    assert list((parquet.parent / "scratch").iterdir()) == []


def test_what_becomes_of_the_parquet_file_does_not_matter_any_more(parquet, little):
    little()
    read = data.read(parquet).x
    rows = read[:]
    parquet.unlink()
    assert np.array_equal(read[:], rows)


def test_a_copy_that_is_damaged_is_an_error(parquet, little):
    little()
    read = data.read(parquet).x
    os.truncate(read.source.copy._file._number, 100)
    with pytest.raises(
        DataError, match=r"E413 .*the copy of .*x.parquet is shorter than when it was checked"
    ):
        read[:]


def test_another_process_unpacks_the_rows_again(parquet, little):
    little()
    read = data.read(parquet).x
    handed = pickle.loads(pickle.dumps(read))
    assert handed.source.read_size == read.source.source.read_size > 0
    assert np.array_equal(handed[:], read[:])


class Full:
    """A file on a disk that is full after so many writes, each of which takes only a part of what it is
    given."""

    def __init__(self, writes):
        self.file, self.writes = TEMPORARY(buffering=0), writes

    def write(self, content):
        if not self.writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.writes -= 1
        return self.file.write(content[:5])

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ("wish", "UNSKEW_SCRATCH is off"),
        ("disk", "lies in memory (UNSKEW_SCRATCH names another folder)"),
        ("room", "in a file they would take more than half of what is free in"),
        ("space", "could not be written to: No space left on device"),
        ("rest", "could not be written to: No space left on device"),
        ("right", "could not be written to: Permission denied"),
    ],
)
def test_without_a_copy_rows_are_unpacked_each_time_and_it_says_why(lacks, why, parquet, little, monkeypatch):
    """Whatever stands in the way of a copy costs time and nothing else."""
    whole = data.read(parquet)
    little()

    def fails(number):
        def fail(*_, **__):
            raise OSError(number, os.strerror(number))

        return fail

    if lacks == "wish":
        monkeypatch.setenv("UNSKEW_SCRATCH", "off")
    elif lacks == "disk":
        device = os.stat(parquet.parent).st_dev
        line = f"36 35 {os.major(device)}:{os.minor(device)} / /tmp rw,noatime shared:1 - tmpfs tmpfs rw\n"
        (parquet.parent / "none").write_text("1 2 0:0 / / rw - ext4 /dev/x rw\n" + line)
    elif lacks == "room":
        monkeypatch.setattr("unskew.system.disk.free_bytes", lambda _: 2 * LISTS.nbytes - 1)
    elif lacks == "space":
        monkeypatch.setattr(os, "posix_fallocate", fails(errno.ENOSPC), raising=False)
    elif lacks == "rest":
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full(40))
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", fails(errno.EACCES))
    read = data.read(parquet)
    assert f"each time unpacked again, because {why}" in told(read) or why in told(read)
    assert isinstance(read.x.source, RowGroups)
    assert np.array_equal(read.x[:], whole.x)


def test_a_write_that_takes_a_part_is_continued(parquet, little, monkeypatch):
    monkeypatch.setattr("unskew.system.disk.free_bytes", lambda _: 2 * LISTS.nbytes)
    files = []
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: files.append(Full(-1)) or files[-1])
    whole = data.read(parquet)
    little()
    read = data.read(parquet)
    assert isinstance(read.x.source, ScratchRows)
    assert len(files) == 1
    assert np.array_equal(read.x[:], whole.x)


def test_samples_have_their_place_in_whatever_order_they_come(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_SCRATCH", str(tmp_path))
    monkeypatch.setattr(scratch, "MOUNT_TABLE", tmp_path / "none")
    made = scratch.ScratchFile(LISTS.shape)
    for begin in (40, 0, 20):
        made.put(begin, LISTS[begin : begin + 20])
    source = SimpleNamespace(name="x", source_dtype=np.dtype("f4"), shape=LISTS.shape, survey=None)
    assert np.array_equal(made.samples(source).read(np.arange(N)), LISTS)


def test_the_folder_is_the_one_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("UNSKEW_SCRATCH", raising=False)
    assert scratch.scratch_folder() == tmp_path
    monkeypatch.setenv("UNSKEW_SCRATCH", f"{tmp_path}/none")
    with pytest.raises(
        DataError, match=r"E402 there is no folder .*none', which UNSKEW_SCRATCH names; make it, or"
    ):
        scratch.scratch_folder()
    monkeypatch.delenv("UNSKEW_SCRATCH")
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(scratch, "DEFAULT_FOLDER", tmp_path)
    assert scratch.scratch_folder() == tmp_path
    monkeypatch.setattr(scratch, "DEFAULT_FOLDER", tmp_path / "none")
    assert scratch.scratch_folder() == Path(tempfile.gettempdir())


def test_samples_that_fit_are_in_memory_and_no_file_is_made(parquet, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    assert not is_streamed(data.read(parquet).x)
