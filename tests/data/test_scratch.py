"""The scratch file of samples that do not fit into memory."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from unskew.data.storage import rows_on_disk
from unskew.data.storage.rows_on_disk import survey_rows
from unskew.errors import DataError

X = np.random.default_rng(0).random((60, 2, 3), dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_SCRATCH", str(tmp_path))


def test_samples_are_read_back_in_whatever_order_they_were_written(tmp_path):
    """The file has no name, and only its user may read it."""
    file = rows_on_disk.SampleSink("x", X.shape, in_memory=False)
    for begin in (40, 0, 20):
        file.put(begin, X[begin : begin + 20])
    rows = file.samples()
    assert np.array_equal(rows[:], X)
    assert np.array_equal(rows[[59, 3, 3, 4]], X[[59, 3, 3, 4]])
    expected = survey_rows(X.shape, X.__getitem__)
    assert all(np.array_equal(getattr(rows.survey, n), v) for n, v in vars(expected).items())
    facts = os.fstat(rows.source.file.fileno())
    assert (facts.st_nlink, stat.S_IMODE(facts.st_mode) & 0o077, facts.st_size) == (0, 0, X.nbytes)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_an_error():
    sink = rows_on_disk.SampleSink("x", X.shape, in_memory=False)
    sink.put(0, X)
    rows = sink.samples()
    os.truncate(rows.source.file.fileno(), 100)
    with pytest.raises(DataError, match=r"E413 the copy of x is shorter than when it was checked"):
        rows[:]


def test_a_disk_without_room_is_an_error_that_says_what_to_set(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    text = rf"E142 x: samples take 0.0 GiB, .*{tmp_path} cannot store them: No space left on device; set UNSKEW_S"
    with pytest.raises(DataError, match=text):
        rows_on_disk.SampleSink("x", X.shape, in_memory=False)


def test_the_folder_is_the_one_that_is_named(tmp_path, monkeypatch):
    assert rows_on_disk.scratch_folder() == tmp_path
    monkeypatch.setenv("UNSKEW_SCRATCH", f"{tmp_path}/none")
    with pytest.raises(DataError, match=r"E402 there is no folder .*none', which UNSKEW_SCRATCH names"):
        rows_on_disk.scratch_folder()
    monkeypatch.delenv("UNSKEW_SCRATCH")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert rows_on_disk.scratch_folder() == tmp_path
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(rows_on_disk, "DEFAULT_FOLDER", tmp_path / "none")
    assert rows_on_disk.scratch_folder() == Path(tempfile.gettempdir())
