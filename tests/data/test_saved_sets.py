"""Folders of Hugging Face Datasets (save_to_disk), read by pyarrow alone: the same samples as from Parquet
with the same columns.

Likely mistakes: a file that was not copied, a DatasetDict whose splits have names of their own, a column of
videos. What others
may do: name files outside of the folder, send damaged files, or such as announce more than they hold.
"""

import json
import os

import numpy as np
import pytest

import unskew
from unskew import data
from unskew.data.storage.sample_rows import is_streamed
from unskew.errors import DataError

from .test_parquet import png, same

pa = pytest.importorskip("pyarrow")
ipc, parquet = pytest.importorskip("pyarrow.ipc"), pytest.importorskip("pyarrow.parquet")
RNG = np.random.default_rng(0)
N = 60
MATRICES = RNG.random((N, 4, 5), dtype=np.float32)
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
    "site": {"_type": "Value", "dtype": "string"},
    "age": {"_type": "Value", "dtype": "float64"},
}
SETTINGS = {"clients": 3, "rounds": 1, "epochs": 1, "batch": 8, "model": "mlp"}


def notes(features):
    return {"huggingface": json.dumps({"info": {"features": features}})}


def images(n=N):
    """Samples, labels and facts as Datasets keeps them."""
    files = pa.StructArray.from_arrays(
        [pa.array([png(i) for i in range(n)], pa.binary()), pa.array([None] * n, pa.string())],
        ["bytes", "path"],
    )
    columns = {
        "image": files,
        "label": pa.array([i % 2 for i in range(n)]),
        "site": pa.array([("north", "south", None)[i % 3] or "east" for i in range(n)]),
        "age": pa.array([i / 7 for i in range(n)]),
    }
    return pa.table(columns).replace_schema_metadata(notes(FEATURES)), FEATURES


def matrices():
    """The lists of an Array2D, with what says so beside the column, and others of every form."""
    nested = pa.array(MATRICES.tolist(), pa.list_(pa.list_(pa.float32())))
    said = {
        "ARROW:extension:name": "datasets.features.features.Array2DExtensionType",
        "ARROW:extension:metadata": '[[4, 5], "float32"]',
    }
    fields = [
        pa.field("none", pa.null()),
        pa.field("words", pa.large_list(pa.string())),
        pa.field("x", nested.type, metadata=said),
        pa.field("fixed", pa.list_(pa.int32(), 3)),
        pa.field("flag", pa.bool_()),
        pa.field("y", pa.int64()),
    ]
    columns = [
        pa.nulls(N),
        pa.array([["a", "bc"]] * N, pa.large_list(pa.string())),
        nested,
        pa.array([[1, 2, 3]] * N, pa.list_(pa.int32(), 3)),
        pa.array([True, None] * (N // 2)),
        pa.array([0, 1, 2] * (N // 3)),
    ]
    features = {
        "x": {"_type": "Array2D", "shape": [4, 5], "dtype": "float32"},
        "more": {"a": {"_type": "Value"}},
    }
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)), features


def save(folder, table, features, files=3, batch=7):
    """What save_to_disk writes."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    step = -(-len(table) // files)
    for i, name in enumerate(names):
        with ipc.new_stream(folder / name, table.schema) as file:
            file.write_table(table.slice(i * step, step), batch)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def save_dict(folder, table, features, **splits):
    """What save_to_disk of a DatasetDict writes; each split has these rows."""
    for name, (begin, end) in splits.items():
        save(folder / name, table.slice(begin, end - begin), features)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*splits]}))
    return folder


@pytest.mark.parametrize(
    ("make", "options"), [(images, "size=8"), (matrices, "x=x,label=y,layout='channels first'")]
)
def test_a_saved_set_is_what_parquet_with_its_columns_is(make, options, tmp_path, monkeypatch):
    """Row by row, in memory and read when wanted; the classes' names and the same
    training."""
    monkeypatch.setenv("UNSKEW_SCRATCH", str(tmp_path))
    table, features = make()
    saved = save(tmp_path / "set", table, features)
    parquet.write_table(
        table.drop_columns(["none"] if "none" in table.column_names else []), tmp_path / "set.parquet"
    )
    whole, other = data.read(f"{saved}({options})"), data.read(f"{tmp_path}/set.parquet({options})")
    same(whole, other)
    assert whole.classes == (("cat", "dog") if make is images else ("0", "1", "2"))
    result = unskew.run("fedavg", f"{saved}({options})", skew="iid", **SETTINGS)
    monkeypatch.setattr("unskew.data.storage.scratch.usable_memory", lambda: 1000)
    read = data.read(f"{saved}({options})")
    assert is_streamed(read.x)
    same(whole, read)
    again = unskew.run("fedavg", f"{saved}({options})", skew="iid", **SETTINGS)
    assert (again.digest, again.scores()) == (result.digest, result.scores())


def test_a_dict_is_divided_by_the_names_of_its_splits(tmp_path):
    table, features = images()
    folder = save_dict(
        tmp_path / "set", table, features, test=(0, 10), train=(10, 40), val=(40, 50), extra=(50, 60)
    )
    read = data.read(folder, size=8)
    assert (len(read.x), len(read.x_test)) == (30, 10)
    assert ("left out", "split 'val', split 'extra'") in read.intake.notes
    assert len(data.read(f"{folder}(split=extra,size=8)").x) == 8
    assert len(data.read(folder / "test", size=8).x) == 8
    one = save_dict(tmp_path / "one", table, features, all=(0, 60))
    assert len(data.read(one, size=8).x) == 48


def change(path, **facts):
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda f: (f / "data-00001-of-00003.arrow").unlink(),
            r"E402 .*data-00001-of-00003\.arrow is missing, which state\.json",
        ),
        (lambda f: (f / "state.json").write_text("[]"), r"E401 .*state\.json is damaged; save the set again"),
        (
            lambda f: change(f / "state.json", _data_files=[{"filename": "../set/x.arrow"}]),
            r"E401 .* lists '\.\./set/x\.arrow', which",
        ),
        (
            lambda f: change(f / "state.json", _data_files=[{"filename": "/etc/passwd"}]),
            r"E401 .* lists '/etc/passwd', which is no name",
        ),
        (
            lambda f: change(f / "state.json", _indices_data_files=[{"filename": "i.arrow"}]),
            r"E403 .* an order of its rows apart",
        ),
        (
            lambda f: (
                os.replace(f / "data-00001-of-00003.arrow", f / "x")
                or os.symlink(f / "x", f / "data-00001-of-00003.arrow")
            ),
            r"E401 .* is a link; copy what",
        ),
    ],
)
def test_what_is_no_whole_set_is_refused_in_a_sentence(spoil, says, tmp_path):
    folder = save(tmp_path / "set", *images())
    spoil(folder)
    with pytest.raises(DataError, match=says) as told:
        data.read(folder, size=8)
    assert "\n" not in str(told.value)


def test_splits_that_cannot_be_told_apart_are_refused_until_one_is_named(tmp_path):
    table, features = images()
    folder = save_dict(tmp_path / "set", table, features, north=(0, 30), south=(30, 60))
    with pytest.raises(
        DataError,
        match=r"E403 .* holds the splits north, south, none or several .*name the one .*split=north",
    ):
        data.read(folder)
    with pytest.raises(DataError, match=r"E403 .* has no split 'west'; it has north, south"):
        data.read(folder, split="west")
    assert len(data.read(folder, split="north", size=8).x) == 24
    with pytest.raises(DataError, match=r"E403 .* is one Dataset without splits"):
        data.read(folder / "north", split="north")
    (folder / "dataset_dict.json").write_text('{"splits": ["north", "../../other"]}')
    with pytest.raises(DataError, match="which is no name in this folder"):
        data.read(folder, split="north")
