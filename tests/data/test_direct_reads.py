"""Rows that go past the system's cache are the same rows, and where that does not work they are read through
it.

Likely mistakes: data on a file system that has no such reads, a container that forbids them, rows that do not
begin where the disk's blocks do. What others may do: cut the file off while the disk is asked, put another
file in its place, take all queues that the system has.
"""

import os
import pickle

import numpy as np
import pytest

from unskew.data.storage import file_ranges
from unskew.data.storage.file_ranges import CACHE_TURN, LONGEST_RANGE, QUEUE_LENGTH, STAGING_BYTES, RangeFile
from unskew.data.storage.npy_rows import NpyRows
from unskew.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """How many ranges the disk was asked for past the cache, and how many of them were not read, at each
    read; the system's memory seems to hold nothing."""
    (tmp_path / "x").write_bytes(bytes(9000))
    some = RangeFile(tmp_path / "x")
    if not some._direct.block:
        pytest.skip("this system does not read past its cache here")
    calls, read = [], file_ranges.DirectFile.read

    def counted(self, into, wanted):
        left = read(self, into, wanted)
        calls.append((len(wanted), len(left)))
        return left

    monkeypatch.setattr(file_ranges.DirectFile, "read", counted)
    monkeypatch.setattr(RangeFile, "_cached_share", lambda *_: 0.0)
    monkeypatch.setattr(file_ranges, "CACHE_TURN", 1 << 40)
    return calls


def source_of(path, shape, kind=np.uint8, offset=0):
    x = RNG.integers(0, 256, (int(np.prod(shape)) * np.dtype(kind).itemsize,), np.uint8)
    path.write_bytes(bytes(offset) + x.tobytes())
    return NpyRows(path, offset, shape, np.dtype(kind), None), x.view(kind).reshape(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "offset"),
    [((700, 7), 0), ((300, 513), 128), ((90, 3, 32, 32), 128), ((600, 5000), 5), ((40, 4096), 0)],
)
def test_rows_past_the_cache_are_those_of_the_file(shape, offset, tmp_path, asked):
    """D8: in any order, twice, side by side, at either end of the file, more of them and more bytes than are
    asked for at once."""
    source, x = source_of(tmp_path / "x", shape, offset=offset)
    n = len(x)
    for rows in (RNG.permutation(n), np.r_[0:n:2, n - 1, 0, n - 1], RNG.integers(0, n, 4 * QUEUE_LENGTH)):
        assert np.array_equal(source.read(rows), x[rows])
    assert [left for _, left in asked] == [0, 0, 0]
    assert max(count for count, _ in asked) > QUEUE_LENGTH or n < QUEUE_LENGTH


def test_long_pieces_go_through_the_cache(tmp_path, asked):
    source, x = source_of(tmp_path / "x", (24, LONGEST_RANGE // 2))
    rows = np.r_[0, 1, 2, 4:20:2, 21, 22, 23]
    assert np.array_equal(source.read(rows), x[rows])
    assert asked == [(10, 2)]
    source, x = source_of(tmp_path / "x", (40, LONGEST_RANGE))
    assert np.array_equal(source.read(np.arange(0, 40, 2)), x[::2])
    assert 20 * LONGEST_RANGE > STAGING_BYTES
    assert asked[1:] == [(20, 0)]


def test_few_ranges_and_those_that_memory_holds_go_through_the_cache(tmp_path, asked, monkeypatch):
    source, x = source_of(tmp_path / "x", (90, 64))
    assert np.array_equal(source.read(np.arange(0, 14, 2)), x[:14:2])
    monkeypatch.setattr(RangeFile, "_cached_share", lambda *_: 0.5)
    assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    assert asked == []


def test_now_and_then_rows_go_through_the_cache_so_that_it_may_hold_them(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(file_ranges, "CACHE_TURN", CACHE_TURN)
    source, x = source_of(tmp_path / "x", (90, 64))
    for _ in range(2 * CACHE_TURN):
        assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    assert len(asked) == 2 * CACHE_TURN - 2


def test_rows_that_are_read_past_the_cache_are_not_asked_for_before(tmp_path, asked, monkeypatch):
    told = []
    source, _ = source_of(tmp_path / "x", (90, 64))
    monkeypatch.setattr(os, "posix_fadvise", lambda *what: told.append(what))
    source.prefetch(np.arange(0, 90, 2))
    assert told == []
    monkeypatch.setattr(RangeFile, "_cached_share", lambda *_: 0.6)
    source.prefetch(np.arange(0, 90, 2))
    assert len(told) == 45


def test_a_file_that_is_cut_off_or_replaced_is_noticed_past_the_cache_too(tmp_path, asked):
    path = tmp_path / "x"
    source, x = source_of(path, (90, 700))
    other = tmp_path / "y"
    other.write_bytes(bytes(path.stat().st_size))
    os.replace(other, path)  # the file that is open stays what it was
    assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    source, x = source_of(path, (90, 700))
    os.truncate(path, 700 * 60 + 1)
    with pytest.raises(DataError, match="is shorter than when it was checked"):
        source.read(np.arange(0, 90, 2))
    assert asked[-1] == (45, 15)


@pytest.mark.parametrize("lacks", ["a call", "a machine", "a queue", "a free thread", "an answer", "a block"])
def test_where_it_does_not_work_rows_are_read_through_the_cache(lacks, tmp_path, asked, monkeypatch):
    monkeypatch.setattr(file_ranges, "_read_queues", [])
    if lacks == "a call":
        monkeypatch.setattr(
            file_ranges, "SYSTEM_CALLS", dict.fromkeys(file_ranges.SYSTEM_CALLS, (100_000,) * 4)
        )
        assert file_ranges.read_queue() is None
    elif lacks == "a machine":
        monkeypatch.setattr(file_ranges, "SYSTEM_CALLS", {})
        assert file_ranges.read_queue() is None
    elif lacks == "a queue":
        monkeypatch.setattr(file_ranges, "QUEUE_LENGTH", 1 << 30)
        assert file_ranges.read_queue() is None
    elif lacks == "a free thread":
        file_ranges.read_queue().busy.acquire()
    elif lacks == "an answer":
        monkeypatch.setattr(file_ranges.ReadQueue, "_call_queue", lambda *_: -1)
    else:
        monkeypatch.setattr(file_ranges, "BLOCK_SIZES", (3,))
    source, x = source_of(tmp_path / "x", (90, 64))
    assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    assert all(left == count for count, left in asked)


def test_what_was_asked_and_not_waited_for_never_overwrites_what_is_read_later(tmp_path, asked, monkeypatch):
    """A read that ends before its answers came leaves a queue to which the disk may still write."""
    source, x = source_of(tmp_path / "x", (90, 700))
    queue, some = file_ranges.read_queue(), file_ranges.ReadQueue._call_queue
    assert queue is not None
    monkeypatch.setattr(
        file_ranges.ReadQueue,
        "_call_queue",
        lambda self, call, *rest: -1 if call == self._wait else some(self, call, *rest),
    )
    assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    monkeypatch.setattr(file_ranges.ReadQueue, "_call_queue", some)
    emptied, empty = [], file_ranges.ReadQueue._reopen
    monkeypatch.setattr(file_ranges.ReadQueue, "_reopen", lambda self: emptied.append(1) or empty(self))
    for _ in range(2):
        assert np.array_equal(source.read(np.arange(1, 90, 2)), x[1::2])
    assert len(emptied) == 1
    assert asked == [(45, 45), (45, 0), (45, 0)]


def test_a_forked_process_has_a_queue_of_its_own(tmp_path, asked, monkeypatch):
    source, x = source_of(tmp_path / "x", (90, 64))
    assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    mine = file_ranges.read_queue()
    monkeypatch.setattr(os, "getpid", lambda: -5)
    assert file_ranges.read_queue() is not mine
    assert np.array_equal(source.read(np.arange(0, 90, 2)), x[::2])
    assert np.array_equal(pickle.loads(pickle.dumps(source)).read(np.arange(0, 90, 2)), x[::2])
    assert [left for _, left in asked] == [0, 0, 0]
    file_ranges._read_queues.clear()


def test_each_look_at_what_memory_holds_is_at_other_rows(tmp_path, monkeypatch):
    """Asking about a row has the system fetch its first page, which then says nothing of the others."""
    (tmp_path / "x").write_bytes(bytes(64))
    some, seen = RangeFile(tmp_path / "x"), []
    monkeypatch.setattr(RangeFile, "_is_cached", lambda _, one: seen.append(one[2]) or one[2] < 32)
    everything = [(i, 1, i) for i in range(64)]
    assert [some._cached_share(everything) for _ in range(2)] == [0.5, 0.5]
    assert len(set(seen)) == 16
    assert some._cached_share([]) == 1
