"""A set that is kept for other processes: what its archive says of samples that lie elsewhere.

The worst that somebody could do with such an archive: name a file of this machine as its samples, a type or a
shape that takes the process down, or more rows than there are.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_rows import X, Y, large, on_disk  # noqa: F401
from unskew import data
from unskew.data.readers import from_npz
from unskew.errors import DataError


def test_a_strangers_archive_names_no_other_file(tmp_path):
    """Facts of an archive said in which file samples lie, so that one from anybody trained on, and handed to
    other processes, whatever file of this machine it named."""
    read = on_disk(tmp_path)
    from_npz.save_dataset(read, tmp_path / "data.npz")
    arrays = dict(np.load(tmp_path / "data.npz"))
    facts = json.loads(str(arrays[from_npz.FACTS_ARRAY]))
    (tmp_path / "elsewhere").mkdir()
    secret = tmp_path / "secret.npy"
    secret.write_bytes((tmp_path / "x.npy").read_bytes())
    for named in ({"path": str(secret)}, {"path": "../secret.npy"}):
        changed = facts | {"stored": {n: how | named for n, how in facts["stored"].items()}}
        np.savez(
            tmp_path / "elsewhere" / "other.npz",
            **arrays | {from_npz.FACTS_ARRAY: np.array(json.dumps(changed))},
        )
        with pytest.raises(DataError, match=r"E402 there is no .*elsewhere/other\.x\.npy"):
            data.read(tmp_path / "elsewhere" / "other.npz")
    for wrong in (
        {"kind": "O"},
        {"kind": "V8"},
        {"offset": -8},
        {"shape": [-1, 4]},
        {"shape": []},
        {"full": 0},
        {"shape": [1 << 60, 8]},
        {"shape": [90, 1, 8, 9]},
    ):
        changed = facts | {"stored": {n: how | wrong for n, how in facts["stored"].items()}}
        np.savez(tmp_path / "data.npz", **arrays | {from_npz.FACTS_ARRAY: np.array(json.dumps(changed))})
        with pytest.raises(
            DataError, match=r"E401 .*data\.npz says that unskew wrote it, and what it holds is damaged"
        ):
            data.read(tmp_path / "data.npz")


def test_samples_are_written_where_no_links_can_be(tmp_path, monkeypatch):
    read = on_disk(tmp_path)
    (tmp_path / "beside").mkdir()
    monkeypatch.setattr(Path, "symlink_to", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    from_npz.save_dataset(read, tmp_path / "beside" / "data.npz")
    again = data.read(tmp_path / "beside" / "data.npz")
    assert np.array_equal(again.x[:], read.x[:])
    assert np.array_equal(again.x_test[:], read.x_test[:])
    assert not any(file.is_symlink() for file in (tmp_path / "beside").iterdir())


def test_a_set_that_was_kept_is_kept_again_at_its_place(tmp_path):
    """A link to itself would have lost the samples."""
    read = on_disk(tmp_path)
    (tmp_path / "beside").mkdir()
    for one in (read, read.with_constants().standardised()):
        from_npz.save_dataset(one, tmp_path / "beside" / "data.npz")
        from_npz.save_dataset(data.read(tmp_path / "beside" / "data.npz"), tmp_path / "beside" / "data.npz")
        assert np.array_equal(data.read(tmp_path / "beside" / "data.npz").x[:], one.x[:])


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]},
        {"mean": [0.0], "std": [0.0]},
        {"mean": [float("nan")], "std": [1.0]},
        {"applied": [[1.0, 2.0], [3.0, 4.0]]},
        {"name": 7},
        {"classes": [1, 2, 3]},
        {"labels": {"site": [1]}},
        {"intake": {"dtype": "float32", "notes": [["weather", "rain"]], "divided": "", "form": {}}},
        {"intake": {"dtype": 1, "notes": [], "divided": "", "form": {}}},
        {"intake": {"dtype": "float32", "notes": [], "divided": "", "form": 3}},
    ],
    ids=range(10),
)
def test_facts_of_other_types_and_lengths_are_refused(tmp_path, change):
    """Three constants made three channels of one, and an unknown topic ended in a traceback."""
    from_npz.save_dataset(data.arrays(X / np.float32(255), Y), tmp_path / "data.npz")
    arrays = dict(np.load(tmp_path / "data.npz"))
    facts = json.loads(str(arrays[from_npz.FACTS_ARRAY]))
    np.savez(tmp_path / "data.npz", **arrays | {from_npz.FACTS_ARRAY: np.array(json.dumps(facts))})
    assert np.array_equal(data.read(tmp_path / "data.npz").y, data.arrays(X / np.float32(255), Y).y)
    np.savez(tmp_path / "data.npz", **arrays | {from_npz.FACTS_ARRAY: np.array(json.dumps(facts | change))})
    with pytest.raises(
        DataError, match=r"E401 .*data\.npz says that unskew wrote it, and what it holds is damaged"
    ):
        data.read(tmp_path / "data.npz")
