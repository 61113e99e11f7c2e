"""Sets larger than memory: rows are read when they are wanted, and train to the same bits as in memory."""

import os

import numpy as np
import pytest

import unskew
from unskew import data
from unskew.data.readers import from_npz
from unskew.data.storage.rows_on_disk import is_streamed, mapped_rows, moments
from unskew.errors import DataError

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (90, 1, 8, 8)).astype(np.uint8), np.arange(90) % 3
X[7] = X[60]
SETTINGS = {"skew": "dirichlet:0.5", "clients": 3, "rounds": 1, "epochs": 1, "batch": 8}


@pytest.fixture(autouse=True)
def large(monkeypatch):
    monkeypatch.setattr("unskew.data.samples.conversion.LARGE", 100)


def on_disk(path, x=X, y=Y):
    """The set, its samples in a file."""
    np.save(path / "x.npy", x)
    dataset = data.arrays(path / "x.npy", y)
    assert is_streamed(dataset.x)
    return dataset


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {"lanes": "1", "epochs": 2}),
        ("fedrdn", {"lanes": "4"}),
        ("flea", {"lanes": "4", "normalise": "dataset", "validation": 0.2}),
    ],
)
def test_rows_that_are_read_train_to_the_same_bits(tmp_path, method, more):
    """D8: steps, passes of hooks side by side, trips, scores, standardising and held-out rows, all from the
    same reader."""
    read, whole = on_disk(tmp_path), data.arrays(X, Y)
    assert read.intake == whole.intake
    assert np.array_equal(read.x_test[:], whole.x_test)
    one, other = (unskew.run(method, d, **SETTINGS | more) for d in (read, whole))
    assert one.digest == other.digest
    assert one.scores() == other.scores()


def test_a_file_that_changes_while_it_is_used_is_an_error_and_no_other_result(tmp_path):
    """D8: a file cut off under a mapping ended the process; one that was written to gave a mixture of two
    sets."""
    read = on_disk(tmp_path)
    with open(tmp_path / "x.npy", "r+b") as file:
        file.seek(-64 * 80, os.SEEK_END)
        file.truncate()
    with pytest.raises(DataError, match=r"E413 .*x\.npy is shorter than when it was checked"):
        read.x[len(read.x) - 5 :]
    with pytest.raises(DataError, match="E413"):
        unskew.run("fedavg", read, **SETTINGS)
    read = on_disk(tmp_path)
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    with pytest.raises(DataError, match=r"E413 .*has changed since it was checked"):
        read.x[0]


def test_values_that_are_not_finite_are_found_wherever_they_lie(tmp_path):
    x = RNG.random((50, 2, 3, 3)).astype(np.float64)
    x[41, 1, 2, 0] = np.inf
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match=r"E405 arrays: training sample 41 holds inf at \[1, 2, 0\]"):
        data.arrays(tmp_path / "x.npy", np.arange(50) % 2)


def test_views_of_a_mapping_are_read_from_their_own_place(tmp_path):
    np.save(tmp_path / "x.npy", X)
    whole = np.load(tmp_path / "x.npy", mmap_mode="r")
    views = (whole, whole[11:], whole[5:80].reshape(-1, 64))
    for view in views:
        for rows in ([3, 4, 5, 3, 60, 0], [], [5, 4, 4, 60, 61, 62, 0]):
            assert np.array_equal(mapped_rows(view, None)[np.array(rows, np.int64)], view[rows])
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    turned, changed = (np.load(tmp_path / n, mmap_mode=m) for n, m in (("f.npy", "r"), ("x.npy", "c")))
    for other in (turned, changed, whole[::-1], whole[:, :, ::3]):
        with pytest.raises(DataError, match=r"E403 .*save the array in C order, and map it with mode 'r'"):
            data.arrays(other, Y)


def test_what_becomes_of_a_smaller_file_changes_nothing(tmp_path, monkeypatch):
    """D8: float32 was used through its mapping: what was written to the file while a run trained was trained
    on."""
    monkeypatch.undo()
    columns, x = np.arange(90) % 4, X.astype(np.float32)
    for name, values in (("x", x), ("x_test", x[:9]), ("y", Y), ("y_test", Y[:9]), ("site", columns)):
        np.save(tmp_path / f"{name}.npy", values)
    view = np.asarray(np.load(tmp_path / "x.npy", mmap_mode="r"))[:80]
    read, viewed = data.read(tmp_path), data.arrays(view, Y[:80], x[:9], Y[:9])
    for name in ("x", "x_test", "y", "y_test", "site"):
        mapped = np.load(tmp_path / f"{name}.npy", mmap_mode="r+")
        mapped[:] = 1
        mapped.flush()
    assert np.array_equal(read.x, x)
    assert np.array_equal(read.x_test, x[:9])
    assert np.array_equal(viewed.x, x[:80])
    assert np.array_equal(read.y, Y)
    assert np.array_equal(read.columns["site"], columns)


def test_other_processes_find_the_rows_in_files_beside_the_archive_and_no_others(tmp_path):
    """Facts of an archive said in which file samples lie, so that one from anybody trained on whatever file of
    this machine it named."""
    read = on_disk(tmp_path)
    for one in (read, read.with_constants().standardised()):
        (tmp_path / "beside").mkdir(exist_ok=True)
        from_npz.save_dataset(one, tmp_path / "beside" / "data.npz")
        again = data.read(tmp_path / "beside" / "data.npz")
        assert np.array_equal(again.x[:], one.x[:])
        assert np.array_equal(again.x_test[:], one.x_test[:])
        assert (again.applied, again.intake) == (one.applied, one.intake)
        assert len(list((tmp_path / "beside").glob("*.npy"))) == 2
    rows = tmp_path / "beside" / "data.x.npy"
    rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"E401 .*data\.x\.npy cannot be read as a whole"):
        data.read(tmp_path / "beside" / "data.npz")
    rows.unlink()
    with pytest.raises(DataError, match=r"E402 there is no .*data\.x\.npy"):
        data.read(tmp_path / "beside" / "data.npz")


def test_what_needs_all_samples_at_once_says_so(tmp_path):
    read = on_disk(tmp_path)
    with pytest.raises(DataError, match=r"E142 all 7\d samples of x\.npy would have to be in memory at once"):
        np.asarray(read.x)
    with pytest.raises(DataError, match=r"E103 .* a feature skew needs a set that fits into memory"):
        unskew.run("fedavg", read, **SETTINGS | {"skew": "iid+gamma:1"})


def test_constants_are_those_of_the_rows_in_memory(tmp_path, monkeypatch):
    """Also where they are summed in several blocks; in one block they are numpy's own."""
    read, x = on_disk(tmp_path), (X / np.float32(255)).astype(np.float32)
    mean, std = moments(x)
    assert np.array_equal(mean, x.mean((0, 2, 3), dtype=np.float64))
    assert np.array_equal(std, x.std((0, 2, 3), dtype=np.float64))
    monkeypatch.setattr("unskew.data.storage.rows_on_disk.SUM_BLOCK", 640)
    assert read.with_constants().mean == data.arrays(X, Y).with_constants().mean
    assert np.allclose(moments(x)[1], std)
