"""Parquet by path, in memory and larger than it: read row group by row group, to the same bits and scores."""

import io
import sys
import wave

import numpy as np
import pytest
from PIL import Image

import unskew
from tests.data import arrow
from unskew import data
from unskew.data import prediction_inputs
from unskew.data.files.parquet import read_table as read_shards
from unskew.data.readers.from_tables import read_table
from unskew.data.storage.rows_on_disk import is_streamed, survey_rows
from unskew.errors import DataError

RNG = np.random.default_rng(0)
N = 60
SETTINGS = {"clients": 3, "rounds": 1, "epochs": 1, "batch": 8, "lanes": "1"}
FILE = "struct<bytes: binary, path: string>"


@pytest.fixture
def little(monkeypatch):
    """Memory into which few samples fit, from when it is called, and small batches."""

    def call(fits=1000):
        monkeypatch.setattr("unskew.data.storage.rows_on_disk.usable_memory", lambda: fits)
        monkeypatch.setattr("unskew.data.files.parquet.COLUMN_ROWS", 5)

    return call


def words(*kinds):
    return [kinds[i] for i in RNG.integers(0, len(kinds), N)]


def columns():
    return {
        "patient_id": ("int64", [3 * i for i in reversed(range(N))]),
        "row": ("int32", list(range(100, 100 + N))),
        "a": ("double", RNG.normal(size=N).tolist()),
        "b": ("float", RNG.normal(size=N).astype(np.float32).tolist()),
        "k": ("uint8", RNG.integers(0, 9, N).tolist()),
        "flag": ("bool", (RNG.random(N) < 0.5).tolist()),
        "w": ("string", words("u", "v", "w")),
        "t": ("string", [f"{v:.3f}" for v in RNG.normal(size=N)]),
        "free": ("string", [f"x{i}" for i in range(N)]),
        "split": ("string", ["test" if i % 5 == 1 else "train" for i in range(N)]),
        "hospital": ("string", words("n", "s")),
        "label": ("string", words("no", "yes")),
    }


def same(one, other):
    assert (one.classes, one.intake.form, one.intake.dtype) == (
        other.classes,
        other.intake.form,
        other.intake.dtype,
    )
    assert (one.applied, one.mean, one.labels) == (other.applied, other.mean, other.labels)
    for name in ("x", "x_test", "y", "y_test"):
        assert np.array_equal(getattr(one, name)[:], getattr(other, name)[:]), name
    for name in ("columns", "test_columns"):
        values = ({n: v.tolist() for n, v in getattr(d, name).items()} for d in (one, other))
        assert next(values) == next(values)


def trains_the_same(text, little, **more):
    """The set in memory, which is compared with the same one read when it is wanted, with settings also by
    what is trained on it."""
    whole = data.read(text)
    result = unskew.run("fedavg", text, **SETTINGS | more) if more else None
    little()
    read = data.read(text)
    assert is_streamed(read.x)
    assert not is_streamed(whole.x)
    same(whole, read)
    notes = [
        note
        for note in read.intake.notes
        if "read when they are wanted: together they would take" not in note[1]
    ]
    assert (sorted(notes), len(read.intake.notes)) == (sorted(whole.intake.notes), len(notes) + 1)
    source = read.x.source
    assert all(
        np.array_equal(getattr(survey_rows(source.shape, source.read), n), v)
        for n, v in vars(source.survey).items()
    )
    if result:
        other = unskew.run("fedavg", text, **SETTINGS | more)
        assert (other.digest, other.scores()) == (result.digest, result.scores())
    return whole


def test_a_table_is_what_it_is_in_memory(tmp_path, little):
    """D8: a Parquet file was read into memory as a whole, each value as an object of Python's."""
    given = columns()
    arrow.write(tmp_path / "x.parquet", given)
    text = f"{tmp_path}/x.parquet"
    whole = trains_the_same(f"{text}(site=hospital)", little, skew="iid")
    old = read_table(
        {name: np.array(values) for name, (_, values) in given.items()}, "x.parquet", site="hospital"
    )
    same(whole, old)
    assert whole.intake.notes == old.intake.notes
    assert [c for c, _ in whole.intake.form["columns"]] == ["a", "b", "k", "flag", "w", "t"]
    same(
        data.read(text, target="a"),
        read_table({n: np.array(v) for n, (_, v) in given.items()}, "x.parquet", target="a"),
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"a": ("double", [0.5] * 40 + [None] + [1.5] * 19)},
            r"E405 x\.parquet: column 'a' has no value at row 40 of .*x\.parquet",
        ),
        (
            {"a": ("string", ["0.5"] * 42 + ["1,5"] + ["2"] * 17)},
            r"E405 x\.parquet: column 'a' holds numbers but '1,5' at row 42 of",
        ),
        (
            {"label": ("string", ["u"] * 30 + [None] + ["v"] * 29)},
            r"E404 x\.parquet: column 'label' has no label at row 30 of",
        ),
    ],
)
def test_what_a_table_must_not_hold_is_named_by_its_row(change, says, tmp_path, little):
    arrow.write(
        tmp_path / "x.parquet", {"a": ("double", [0.5] * N), "label": ("string", ["u", "v"] * 30)} | change
    )
    little()
    with pytest.raises(DataError, match=says):
        data.read(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("form", "shape", "options", "turned"),
    [
        (
            "list<element: list<element: list<element: uint16>>>",
            (8, 8, 3),
            "(layout=channels last)",
            lambda x: x.transpose(0, 3, 1, 2),
        ),
        ("list<element: list<element: uint8>>", (9, 8), "(layout='channels last')", lambda x: x[:, None]),
    ],
)
def test_lists_are_the_arrays_that_they_spell(form, shape, options, turned, tmp_path, little):
    kind = {"double": "f8", "uint8": "u1", "uint16": "u2"}[form.rpartition(" ")[2].partition(">")[0]]
    x = RNG.integers(0, 256, (N, *shape)).astype(kind)
    y = [i % 3 for i in range(N)]
    arrow.write(tmp_path / "x.parquet", {"pixels": (form, x.tolist()), "label": ("int64", y)})
    options = options.replace("channels last)", "'channels last')").replace("''", "'")
    whole = trains_the_same(f"{tmp_path}/x.parquet{options}", little)
    other = data.arrays(turned(x), y, name="x", layout="channels first")
    assert np.array_equal(whole.x, other.x)
    assert whole.intake.dtype == other.intake.dtype
    assert {note for note in other.intake.notes if note[0] == "scaled"} <= set(whole.intake.notes)


def test_labels_may_be_lists_too(tmp_path, little):
    """A label for every token; of several columns of lists the samples are named."""
    ids = RNG.integers(0, 20, (N, 5))
    tokens = "list<element: int64>"
    given = {
        "input_ids": (tokens, ids.tolist()),
        "mask": (tokens, (ids > 0).astype(int).tolist()),
        "labels": (tokens, (ids % 3).tolist()),
    }
    arrow.write(tmp_path / "x.parquet", given)
    with pytest.raises(
        DataError,
        match=r"E403 x\.parquet has several columns of samples, input_ids, mask: name one, x=input_ids;",
    ):
        data.read(tmp_path / "x.parquet")
    for _ in range(2):
        read = data.read(f"{tmp_path}/x.parquet(x=input_ids)")
        assert read.tokens
        assert sorted((*read.y.ravel(), *read.y_test.ravel())) == sorted((ids % 3).ravel())
        assert ("left out", "columns 'mask'") in read.intake.notes
        little()


def test_columns_of_a_table_are_features_although_others_hold_lists(tmp_path):
    """A table may carry embeddings; x= or drop= say what is trained on."""
    given = {
        "age": ("double", [float(i) for i in range(N)]),
        "embedding": ("list<element: double>", [[0.5, 1.5]] * N),
        "site": ("string", ["a", "b"] * (N // 2)),
        "label": ("int64", [i % 3 for i in range(N)]),
    }
    arrow.write(tmp_path / "x.parquet", given)
    for options in ("x=age", "drop=embedding"):
        read = data.read(f"{tmp_path}/x.parquet({options})")
        assert [name for name, _ in read.intake.form["columns"]] == ["age"], options
    lists = data.read(f"{tmp_path}/x.parquet(x=embedding, drop=age)")
    assert lists.shape == (2,)
    assert list(lists.columns) == ["site"]
    with pytest.raises(DataError, match=r"E403 .* several columns of samples, .*name one, x=embedding"):
        data.read(f"{tmp_path}/x.parquet(x='age,embedding')")


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (
            [[1.0, 2.0]] * 40 + [[1.0]] + [[1.0, 2.0]] * 19,
            r"column 'v' is \[2\] in row 0 of .* and is \[1\] in row 40 of .*x\.parquet",
        ),
        (
            [[1.0, 2.0]] * 40 + [None] + [[1.0, 2.0]] * 19,
            r"column 'v' is \[2\] in row 0 of .* and lacks a value in row 40 of",
        ),
        ([[1.0, 2.0]] * 40 + [[1.0], [1.0, 2.0, 3.0]] + [[1.0, 2.0]] * 18, r"and is \[1\] in row 40 of"),
        ([[]] * 60, r"column 'v' holds no numbers in row 0"),
    ],
)
def test_lists_of_several_lengths_are_refused(lists, says, tmp_path):
    """Also where as many numbers are missing in one as another has more."""
    arrow.write(tmp_path / "x.parquet", {"v": ("list<element: double>", lists), "y": ("int64", [0, 1] * 30)})
    with pytest.raises(DataError, match=f"E403 .*{says}"):
        data.read(tmp_path / "x.parquet")


def png(i, side=8):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(i).integers(0, 256, (side, side + i % 2, 3)).astype(np.uint8)).save(
        file, "PNG"
    )
    return file.getvalue()


def wav(i):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 4000 if i else 8000, 0, "NONE", ""))
        sound.writeframes(np.random.default_rng(i).integers(-9000, 9000, 900 + i).astype("<i2").tobytes())
    return file.getvalue()


def packed(make, n=24):
    """(columns of files and their labels, the same files in a folder for each class)."""
    contents = [make(i) for i in range(n)]
    files = [{"bytes": content, "path": None} for content in contents]
    given = {
        "image": (FILE, files),
        "writer": ("string", [f"w{i % 4}" for i in range(n)]),
        "label": ("int64", [i % 2 for i in range(n)]),
    }
    return given, contents


@pytest.mark.parametrize(("make", "ending", "options"), [(png, "png", "(size=8)"), (wav, "wav", "")])
def test_files_in_rows_are_those_of_a_folder(make, ending, options, tmp_path, little):
    """D8: images and sounds as the hub keeps them, with the classes' names that its schema has."""
    given, contents = packed(make)
    notes = {"info": {"features": {"label": {"names": ["a", "b"]}, "image": {"_type": "Image"}}}}
    arrow.write(tmp_path / "set" / "train-00000-of-00001.parquet", given, notes=notes)
    for i, content in enumerate(contents):
        (tmp_path / "files" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / "ab"[i % 2] / f"{i:02}.{ending}").write_bytes(content)
    whole = trains_the_same(f"{tmp_path}/set{options}", little, skew="column:writer", clients=4)
    other = data.read(
        f"{tmp_path}/files{options}",
    )
    assert whole.classes == other.classes == ("a", "b")
    assert whole.intake.form == {**other.intake.form, "column": "image"}
    rows, others = ({row.tobytes() for row in np.concatenate([d.x[:], d.x_test[:]])} for d in (whole, other))
    assert rows == others
    assert set(whole.labels["writer"]) == {"w0", "w1", "w2", "w3"}
    assert {n for n in other.intake.notes if n[0] == "scaled"} == {
        n for n in whole.intake.notes if n[0] == "scaled"
    }


def test_files_that_cannot_be_read_are_all_named_and_no_path_is_opened(tmp_path, little):
    """A row may hold the path of a file instead of its content: somebody else's file must not become a
    sample."""
    given, contents = packed(png)
    secret = tmp_path / "secret.png"
    secret.write_bytes(contents[0])
    given["image"][1][3] = {"bytes": b"no image", "path": None}
    given["image"][1][17] = {"bytes": None, "path": str(secret)}
    arrow.write(tmp_path / "x.parquet", given)
    for _ in range(2):
        with pytest.raises(
            DataError,
            match=(
                r"E401 Row 3 of .*x\.parquet cannot be read as an image: .* 2 of 24 files cannot be read;"
                r" also row 17 of"
            ),
        ):
            data.read(f"{tmp_path}/x.parquet(size=8)")
        little()


def test_shards_are_divided_by_their_names(tmp_path, little):
    rows = {
        part: {"a": ("double", RNG.normal(size=9).tolist()), "y": ("int64", [0, 1, 0] * 3)} for part in "pqrs"
    }
    names = {
        "p": "train-00000-of-00002",
        "q": "train-00001-of-00002",
        "r": "test-00000-of-00001",
        "s": "validation-0",
    }
    for part, name in names.items():
        arrow.write(tmp_path / "set" / f"{name}.parquet", rows[part], group=4)
    (tmp_path / "set" / "_SUCCESS").write_bytes(b"")
    (tmp_path / "set" / ".hidden.parquet").write_bytes(b"")
    for _ in range(2):
        read = data.read(tmp_path / "set")
        assert np.allclose(read.x[:].ravel(), rows["p"]["a"][1] + rows["q"]["a"][1])
        assert np.allclose(read.x_test[:].ravel(), rows["r"]["a"][1])
        assert ("left out", "validation-0.parquet: choose settings with validation=0.1") in read.intake.notes
        some = data.read(f"{tmp_path}/set/train-*.parquet")
        assert len(some.y) + len(some.y_test) == 18
        little(100)
    assert data.read(f"{tmp_path}/set/train-*.parquet(label=y)").classes == ("0", "1")
    for part in ("train", "test"):
        arrow.write(tmp_path / "folders" / part / "0.parquet", rows["p" if part == "train" else "r"])
    assert len(data.read(tmp_path / "folders").y_test) == 9


def test_folders_whose_parts_cannot_be_told_are_refused(tmp_path):
    given = {"a": ("double", [0.5, 1.5]), "y": ("int64", [0, 1])}
    for name in ("train", "more"):
        arrow.write(tmp_path / "one" / f"{name}.parquet", given)
    for name in ("en/train", "de/train"):
        arrow.write(tmp_path / "two" / f"{name}.parquet", given)
    arrow.write(tmp_path / "three" / "test.parquet", given)
    arrow.write(tmp_path / "five" / "train.parquet", given)
    arrow.write(tmp_path / "five" / "test.parquet", {"a": given["a"]})
    arrow.write(tmp_path / "six" / "a.parquet", given)
    arrow.write(tmp_path / "six" / "b.parquet", given | {"a": ("string", ["u", "v"])})
    for name, says in {
        "one": r"E403 .*train\.parquet names what its rows are for, and .*more\.parquet does not",
        "two": r"E403 .*two holds several sets, .*de and .*en; name one",
        "three": r"E403 .*three holds no training rows",
        "five": r"E403 .*test\.parquet has no column 'y', which .*train\.parquet has",
        "six": r"E403 column 'a' is double in .*a\.parquet and string in .*b\.parquet",
    }.items():
        with pytest.raises(DataError, match=says):
            data.read(tmp_path / name)
    with pytest.raises(DataError, match="E402 there is no "):
        data.read(f"{tmp_path}/none-*.parquet")
    for name, classes in (("one", ["cat", "dog"]), ("two", ["dog", "cat"])):
        notes = {"info": {"features": {"y": {"names": classes}}}}
        arrow.write(tmp_path / "seven" / f"{name}.parquet", given, notes=notes)
    with pytest.raises(
        DataError, match=r"E403 .*one.parquet and .*two.parquet number the classes of column 'y'"
    ):
        data.read(tmp_path / "seven")


def test_damaged_files_and_a_missing_package_are_one_sentence(tmp_path, monkeypatch):
    arrow.write(tmp_path / "x.parquet", columns())
    whole = (tmp_path / "x.parquet").read_bytes()
    for content in (b"", whole[:-3], whole[: len(whole) // 2], b"PAR1PAR1"):
        (tmp_path / "torn.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"E401 .*torn\.parquet cannot be read as Parquet: [^\n]*\.$"):
            data.read(tmp_path / "torn.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        DataError, match=r"E401 reading .*x\.parquet needs pyarrow; pip install 'unskew\[tables\]'"
    ):
        data.read(tmp_path / "x.parquet")


def test_new_rows_are_read_as_those_of_training_were(tmp_path):
    given, _ = packed(png)
    arrow.write(tmp_path / "files.parquet", given)
    lists = RNG.integers(0, 256, (N, 4, 4, 3), dtype=np.uint8)
    numbers = "list<element: list<element: list<element: uint8>>>"
    arrow.write(tmp_path / "lists.parquet", {"x": (numbers, lists.tolist()), "label": ("int64", [0, 1] * 30)})
    arrow.write(tmp_path / "table.parquet", columns())
    for text, factor in (
        ("files.parquet(size=8)", 1),
        ("lists.parquet(layout='channels last')", 255),
        ("table.parquet", 1),
    ):
        trained = data.read(f"{tmp_path}/{text}")
        names, x = prediction_inputs.read_inputs(tmp_path / text.partition("(")[0], trained.intake.form)
        rows = {row.tobytes() for row in np.concatenate([trained.x, trained.x_test])}
        assert rows == {(row / np.float32(factor)).tobytes() if factor > 1 else row.tobytes() for row in x}
        assert names[3].startswith("row 3 of ")
    arrow.write(tmp_path / "other.parquet", {"a": ("int64", [1, 2])})
    with pytest.raises(DataError, match=r"E403 other.parquet has as columns of files none; .*'image'"):
        prediction_inputs.read_inputs(
            tmp_path / "other.parquet", data.read(f"{tmp_path}/files.parquet").intake.form
        )


def test_far_more_values_than_the_files_size_makes_likely_are_refused_unread(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    zeros = pyarrow.array([np.zeros(100_000)] * 6)
    parquet.write_table(pyarrow.table({"x": zeros, "label": [0, 1] * 3}), tmp_path / "t.parquet")
    monkeypatch.setattr("unskew.data.files.archives.SMALL_SIZE", 1 << 16)
    with pytest.raises(DataError, match=r"E401 .*t\.parquet: its .* bytes unpack to more than"):
        data.read(tmp_path / "t.parquet")


def test_few_rows_of_long_lists_are_read_at_once(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = pyarrow.array([np.full(400, i) for i in range(10)])
    parquet.write_table(pyarrow.table({"x": rows, "label": range(10)}), tmp_path / "t.parquet")
    monkeypatch.setattr("unskew.data.files.parquet.VALUES_AT_ONCE", 1000)
    table = read_shards(tmp_path / "t.parquet")
    assert [part["x"] for _, part in table.parts(["x"], len)] == [2] * 5
