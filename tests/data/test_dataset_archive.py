"""A set that is kept for other processes: what its archive says of samples that lie elsewhere.

The worst that somebody could do with such an archive: name a file of this machine as its samples, a type or a
shape that takes the process down, or more rows than there are.
"""

import json

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
