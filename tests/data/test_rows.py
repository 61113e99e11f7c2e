"""Sets larger than memory: rows are read when they are wanted, from .npy files or from a scratch file, and train
to the same bits as in memory.
"""

import errno
import os
import stat
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import unskew
from unskew import data
from unskew.data.readers.from_npz import save_dataset
from unskew.data.storage import rows_on_disk
from unskew.data.storage.rows_on_disk import is_streamed, mapped_rows, moments, survey_rows
from unskew.errors import DataError, UsageError

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (90, 1, 8, 8)).astype(np.uint8), np.arange(90) % 3
X[7] = X[60]
SETTINGS = {"skew": "dirichlet:0.5", "clients": 3, "rounds": 1, "epochs": 1, "batch": 8, "lanes": "1"}


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Files are large from 100 bytes on."""
    for module in ("conversion", "packing"):
        monkeypatch.setattr(f"unskew.data.samples.{module}.LARGE", 100)


@pytest.fixture
def little(monkeypatch):
    """What leaves this process with little memory."""

    def call(memory: int = 1000) -> None:
        monkeypatch.setattr("unskew.data.storage.rows_on_disk.usable_memory", lambda: memory)

    return call


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
            assert np.array_equal(mapped_rows(view, None, "x")[np.array(rows, np.int64)], view[rows])
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


def test_what_needs_all_samples_at_once_says_so(tmp_path):
    read = on_disk(tmp_path)
    with pytest.raises(DataError, match=r"E142 all 7\d samples of x\.npy would have to be in memory at once"):
        np.asarray(read.x)
    with pytest.raises(DataError, match=r"E103 .* a feature skew needs a set that fits into memory"):
        unskew.run("fedavg", read, **SETTINGS | {"skew": "iid+gamma:1"})
    with pytest.raises(UsageError, match=r"E109 .* save them as \.npy or Parquet files"):
        save_dataset(read, tmp_path / "data.npz")


def test_constants_are_those_of_the_rows_in_memory(tmp_path, monkeypatch):
    """Also where they are summed in several blocks; in one block they are numpy's own."""
    read, x = on_disk(tmp_path), (X / np.float32(255)).astype(np.float32)
    mean, std = moments(x)
    assert np.array_equal(mean, x.mean((0, 2, 3), dtype=np.float64))
    assert np.array_equal(std, x.std((0, 2, 3), dtype=np.float64))
    monkeypatch.setattr("unskew.data.storage.rows_on_disk.SUM_BLOCK", 640)
    assert read.with_constants().mean == data.arrays(X, Y).with_constants().mean
    assert np.allclose(moments(x)[1], std)


def images(root, n=12, sites=("",)):
    rng = np.random.default_rng(0)
    for site in sites:
        for label in ("a", "b"):
            (root / site / label).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (8, 8 + i % 2, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(root / site / label / f"{i}.png")
    return f"{root}(size=8)"


def sounds(root, n=6):
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for i in range(n):
            with wave.open(str(root / label / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 4000 if i else 8000, 0, "NONE", ""))
                file.writeframes(rng.integers(-9000, 9000, 900 + i).astype("<i2").tobytes())
    return str(root)


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (images, {"skew": "iid"}),
        (
            lambda root: images(root, 6, ("x", "y")),
            {"skew": "column:site", "clients": 2, "normalise": "dataset"},
        ),
        (sounds, {"skew": "iid", "clients": 2}),
    ],
)
def test_files_that_do_not_fit_into_memory_are_decoded_once_and_train_to_the_same_bits(
    tmp_path, little, make, more
):
    """D8: folders were decoded into memory as a whole, whatever their size."""
    text = make(tmp_path / "set")
    whole = data.read(text)
    one = unskew.run("fedavg", text, **SETTINGS | more)
    little()
    read = data.read(text)
    assert is_streamed(read.x)
    assert not is_streamed(whole.x)
    assert np.array_equal(read.x_test[:], whole.x_test)
    assert (read.mean, read.std, read.classes) == (whole.mean, whole.std, whole.classes)
    assert "; from a file without a name in " in read.intake.notes[-1][1]
    source, found = read.x.source, read.x.source.survey
    assert all(
        np.array_equal(getattr(survey_rows(source.shape, source.read), n), getattr(found, n))
        for n in vars(found)
    )
    notes = [
        note
        for note in read.intake.notes
        if "read when they are wanted: together they would take" not in note[1]
    ]
    assert (notes, len(read.intake.notes)) == (list(whole.intake.notes), len(notes) + 1)
    other = unskew.run("fedavg", text, **SETTINGS | more)
    assert (other.digest, other.scores()) == (one.digest, one.scores())


N = 36
SCANS = RNG.integers(0, 256, (N, 1, 8, 8), dtype=np.uint8)
SCANS[7] = SCANS[30]
AGES, IDS = RNG.normal(size=N).astype(np.float32), RNG.integers(0, 50, (N, 6))
ANSWERS = np.arange(N) % 2
INPUTS = {"scan": SCANS, "age": AGES, "ids": IDS}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.body, self.head = nn.Embedding(50, 2), nn.Linear(64 + 1 + 12, 8), nn.Linear(8, 2)

    def forward(self, scan: Tensor, age: Tensor, ids: Tensor) -> Tensor:
        flat = [scan.flatten(1), age[:, None], self.table(ids).flatten(1)]
        return self.head(self.body(torch.cat(flat, 1)).relu())


class Items:
    def __init__(self, rows: range = range(N)):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        row = self.rows[i]
        return {name: values[row] for name, values in INPUTS.items()}, int(ANSWERS[row])


def mapped(path):
    for name, values in INPUTS.items():
        np.save(path / f"{name}.npy", values)
    return {name: path / f"{name}.npy" for name in INPUTS}


FORMS = {
    "arrays in memory": lambda path: (INPUTS, ANSWERS),
    "files of .npy": lambda path: data.arrays(mapped(path), ANSWERS),
    "some in files": lambda path: ({**INPUTS, "scan": np.load(mapped(path)["scan"], mmap_mode="r")}, ANSWERS),
    "a Dataset": lambda path: Items(),
}


@pytest.fixture(scope="module")
def theirs():
    """A run with all samples in memory."""
    return unskew.run("standardise+scaffold", data.take((INPUTS, ANSWERS)), model=Net(), **SETTINGS)


@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_memory_does_not_hold_train_to_the_same_bits(form, theirs, tmp_path, little):
    whole = data.take((INPUTS, ANSWERS))
    little()
    read = data.take(FORMS[form](tmp_path))
    assert is_streamed(read.x)
    assert read.layout == whole.layout
    assert np.array_equal(read.x[:], whole.x)
    assert np.array_equal(read.x_test[:], whole.x_test)
    assert any(text.startswith("samples are read when they are wanted") for _, text in read.intake.notes)
    if form != "arrays in memory":
        ours = unskew.run("standardise+scaffold", read, model=Net(), **SETTINGS)
        assert (ours.digest, ours.scores()) == (theirs.digest, theirs.scores())


def test_clients_may_have_too_many_together(little):
    half = range(0, N, 2), range(1, N, 2)
    clients = {name: Items(rows) for name, rows in zip(("north", "south"), half)}
    theirs = unskew.run("fedavg", clients, model=Net(), rounds=1, epochs=1, batch=8)
    little(30_000)  # each fits, and both together do not
    ours = unskew.run("fedavg", clients, model=Net(), rounds=1, epochs=1, batch=8)
    assert is_streamed(ours.federation.x)
    assert ours.digest == theirs.digest


def test_tokens_may_have_a_label_each(little):
    labels = np.where(np.arange(6) < 4, IDS % 3, -100)
    given = {"ids": IDS, "present": IDS > 10}
    whole = data.arrays(given, labels)
    little()
    read = data.arrays(given, labels)
    assert is_streamed(read.x)
    assert read.tokens
    assert np.array_equal(read.y, whole.y)
    with pytest.raises(DataError, match="E404"):
        data.arrays(given, labels[:, :4])


SCRATCH = RNG.random((60, 2, 3), dtype=np.float32)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_SCRATCH", str(tmp_path))


def test_samples_are_read_back_in_whatever_order_they_were_written(tmp_path, scratch):
    """The file has no name, and only its user may read it."""
    file = rows_on_disk.SampleSink("x", SCRATCH.shape, in_memory=False)
    for begin in (40, 0, 20):
        file.put(begin, SCRATCH[begin : begin + 20])
    rows = file.samples()
    assert np.array_equal(rows[:], SCRATCH)
    assert np.array_equal(rows[[59, 3, 3, 4]], SCRATCH[[59, 3, 3, 4]])
    expected = survey_rows(SCRATCH.shape, SCRATCH.__getitem__)
    assert all(np.array_equal(getattr(rows.survey, n), v) for n, v in vars(expected).items())
    facts = os.fstat(rows.source.file.fileno())
    assert (facts.st_nlink, stat.S_IMODE(facts.st_mode) & 0o077, facts.st_size) == (0, 0, SCRATCH.nbytes)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_an_error(scratch):
    sink = rows_on_disk.SampleSink("x", SCRATCH.shape, in_memory=False)
    sink.put(0, SCRATCH)
    rows = sink.samples()
    os.truncate(rows.source.file.fileno(), 100)
    with pytest.raises(DataError, match=r"E413 the copy of x is shorter than when it was checked"):
        rows[:]


def test_a_disk_without_room_is_an_error_that_says_what_to_set(tmp_path, scratch, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    text = rf"E142 x: samples take 0.0 GiB, .*{tmp_path} cannot store them: No space left on device; set UNSKEW_S"
    with pytest.raises(DataError, match=text):
        rows_on_disk.SampleSink("x", SCRATCH.shape, in_memory=False)


def test_the_folder_is_the_one_that_is_named(tmp_path, scratch, monkeypatch):
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
