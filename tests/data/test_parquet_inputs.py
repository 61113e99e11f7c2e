"""Several inputs out of Parquet, and samples without labels: read as arrays and tables are, or refused in a
sentence.

Likely mistakes: the column of labels among the inputs, a number that is missing, images whose channels come
last.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.data import arrow
from tests.data.test_parquet import FILE, png, wav
from unskew import data
from unskew.data import prediction_inputs
from unskew.data.samples.packing import input_column, pack_to_layout
from unskew.errors import DataError

N = 40
RNG = np.random.default_rng(2)
SCANS = RNG.integers(0, 256, (N, 4, 4, 3), dtype=np.uint8)
AGES = RNG.normal(size=N).astype(np.float32)
IDS = RNG.integers(0, 9, (N, 5))
Y = np.arange(N) % 2
FIRST = np.ascontiguousarray(SCANS.transpose(0, 3, 1, 2))
SETTINGS = {"clients": 2, "rounds": 1, "epochs": 1, "batch": 8, "workers": 1, "skew": "iid"}
NUMBERS = "list<element: list<element: list<element: uint8>>>"
SETTING = "(x='scan,age,ids', label=ill, layout='channels last')"


def columns(rows=slice(None), **more):
    return {
        "scan": (NUMBERS, SCANS[rows].tolist()),
        "age": ("float", AGES[rows].tolist()),
        "ids": ("list<element: int64>", IDS[rows].tolist()),
        "hospital": ("string", [("north", "south", "east")[i % 3] for i in range(len(Y[rows]))]),
        "ill": ("int64", Y[rows].tolist()),
        **more,
    }


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.body = nn.Embedding(9, 2), nn.Linear(48 + 1 + 10, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, scan: Tensor, age: Tensor, ids: Tensor) -> Tensor:
        flat = [scan.flatten(1), age[:, None], self.table(ids).flatten(1)]
        return self.head(self.body(torch.cat(flat, 1)).relu())


GIVEN = {"scan": FIRST, "age": AGES, "ids": IDS}


def test_columns_become_the_inputs_that_arrays_would(tmp_path):
    arrow.write(tmp_path / "p.parquet", columns())
    ours, theirs = data.read(f"{tmp_path}/p.parquet{SETTING}"), data.arrays(GIVEN, Y)
    assert str(ours.layout) == str(theirs.layout) == "age float32 number, ids int64 [5], scan uint8 [3, 4, 4]"
    assert {r.tobytes() for r in (*ours.x, *ours.x_test)} == {
        r.tobytes() for r in (*theirs.x, *theirs.x_test)
    }
    place = {r.tobytes(): label for r, label in zip((*theirs.x, *theirs.x_test), (*theirs.y, *theirs.y_test))}
    assert [place[r.tobytes()] for r in (*ours.x, *ours.x_test)] == [*ours.y, *ours.y_test]
    assert set(ours.columns) == {"hospital"}


def test_shards_of_training_and_test_rows_stay_what_they_are(tmp_path):
    arrow.write(tmp_path / "s" / "train-0.parquet", columns(slice(0, 30)))
    arrow.write(tmp_path / "s" / "test-0.parquet", columns(slice(30, N)))
    ours = data.read(f"{tmp_path}/s{SETTING}")
    theirs = data.arrays(
        {n: v[:30] for n, v in GIVEN.items()}, Y[:30], {n: v[30:] for n, v in GIVEN.items()}, Y[30:]
    )
    assert np.array_equal(ours.x, theirs.x)
    assert np.array_equal(ours.x_test, theirs.x_test)
    assert np.array_equal(ours.y_test, theirs.y_test)


def test_a_run_is_trained_and_predicts_from_such_files(tmp_path):
    arrow.write(tmp_path / "p.parquet", columns())
    new = columns()
    del new["ill"]
    arrow.write(tmp_path / "new.parquet", new)
    result = unskew.run("fedavg", f"{tmp_path}/p.parquet{SETTING}", model=Net(), **SETTINGS)
    intake, layout = result.federation.intake, result.federation.layout
    assert intake
    names, x = prediction_inputs.read_inputs(tmp_path / "new.parquet", intake.form, layout)
    assert names[3] == f"row 3 of {tmp_path / 'new.parquet'}"
    assert np.array_equal(result.predict_proba(x), result.predict_proba(GIVEN))
    del new["age"]
    arrow.write(tmp_path / "less.parquet", new)
    with pytest.raises(DataError, match=r"E403 less.parquet has no column 'age'"):
        prediction_inputs.read_inputs(tmp_path / "less.parquet", intake.form, layout)
    placed = data.arrays((AGES, IDS), Y).layout
    with pytest.raises(DataError, match=r"E403 .*names its columns, and this model takes inputs by place"):
        prediction_inputs.read_inputs(tmp_path / "new.parquet", {}, placed)


class Worded(Net):
    """Takes the place of the hospital, [batch, hospitals], and the sex, [batch], too."""

    def forward(self, ids: Tensor, hospital: Tensor, sex: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.zeros(len(ids), 48), 3 * hospital[:, 0] + hospital[:, 2] - sex, ids)


SEXES = [("f", "m")[i % 2] for i in range(N)]


def test_words_become_the_numbers_that_they_were_in_training(tmp_path):
    """They were refused, where a CSV that lists files took them. The words of new samples are those of
    training, or refused."""
    arrow.write(tmp_path / "p.parquet", columns(sex=("string", SEXES)))
    setting = "(x='ids,hospital,sex', label=ill)"
    result = unskew.run("fedavg", f"{tmp_path}/p.parquet{setting}", model=Worded(), **SETTINGS)
    federation = result.federation
    places = np.arange(N) % 3
    hospital = np.stack([places == 2, places == 0, places == 1], 1).astype(np.float32)  # east, north, south
    by_hand = {"ids": IDS, "hospital": hospital, "sex": np.arange(N, dtype=np.float32) % 2}
    same = unskew.run("fedavg", (by_hand, Y), model=Worded(), **SETTINGS)
    assert result.digest == same.digest
    some = columns(slice(0, 4), sex=("string", SEXES[:4]))
    del some["ill"]
    arrow.write(tmp_path / "new.parquet", some)
    _, x = prediction_inputs.read_inputs(tmp_path / "new.parquet", federation.intake.form, federation.layout)
    assert np.array_equal(result.predict_proba(x), same.predict_proba({n: v[:4] for n, v in by_hand.items()}))
    unknown = r"E405 odd.parquet: column 'sex' holds '[w0]' at row 0 of .*never seen; it knows 'f', 'm'"
    for sexes, text in (
        (("string", ["w", "f", "m", "f"]), unknown),
        (("int64", [0, 1, 0, 1]), unknown),
        (("string", ["f", None, "m", "f"]), r"E405 odd.parquet: column 'sex' has no value at row 1"),
    ):
        arrow.write(tmp_path / "odd.parquet", {**some, "sex": sexes})
        with pytest.raises(DataError, match=text):
            prediction_inputs.read_inputs(tmp_path / "odd.parquet", federation.intake.form, federation.layout)
    arrow.write(tmp_path / "ages.parquet", columns())
    numbers = unskew.run("fedavg", f"{tmp_path}/ages.parquet{SETTING}", model=Net(), **SETTINGS).federation
    arrow.write(tmp_path / "odd.parquet", columns(age=("string", ["old"] * N)))
    with pytest.raises(
        DataError, match=r"E405 odd.parquet: column 'age' holds words such as 'old'; .*trained on numbers"
    ):
        prediction_inputs.read_inputs(tmp_path / "odd.parquet", numbers.intake.form, numbers.layout)
    (tmp_path / "xrays").mkdir()
    with pytest.raises(DataError, match=r"E403 .*xrays is no .npz"):
        prediction_inputs.read_inputs(tmp_path / "xrays", federation.intake.form, federation.layout)


LARGER = {"scan": (NUMBERS, np.zeros((N, 16, 16, 3), np.uint8).tolist())}


@pytest.mark.parametrize(
    ("setting", "changed", "text"),
    [
        ("x='scan,years'", {}, "E403 p.parquet has no column 'years'; it has: scan, age"),
        (
            "x='ids,ill'",
            {},
            "E403 p.parquet: which column holds the labels is not said, .*name it, label=COLUMN",
        ),
        ("x='ids,ill', label=ill", {}, "E403 p.parquet: column 'ill' holds the labels; leave it out of x"),
        ("x='age,ids,age'", {}, "E403 p.parquet: x names the column 'age' twice; name each input once"),
        (
            "x='ids,hospital'",
            {"hospital": ("string", [None, *N * "a"][:N])},
            "E405 p.parquet: column 'hospital' has no value",
        ),
        (
            "x='ids,hospital'",
            {"hospital": ("string", [f"h{i}" for i in range(N)])},
            "E403 p.parquet: column 'hospital' holds 40 different",
        ),
        (
            "x='scan,age'",
            LARGER,
            r"E403 p.parquet: lists in column 'scan' are \[16, 16, 3\], .*write layout='channels last'",
        ),
        (
            "x='age,ids'",
            {"age": ("float", [None, *AGES[1:].tolist()])},
            "E405 p.parquet: column 'age' has no value in row 0",
        ),
        (
            "x='age,ids'",
            {"ids": ("list<element: int64>", [[1], *IDS[1:].tolist()])},
            r"E403 p.parquet: column 'ids' is \[1\] in row 0",
        ),
        ("", {}, "E403 p.parquet has several columns of samples, .*several inputs all of them, x='scan,ids'"),
    ],
    ids=range(10),
)
def test_what_cannot_be_an_input_is_refused(tmp_path, setting, changed, text):
    arrow.write(
        tmp_path / "p.parquet",
        {"labels" if n == "ill" and not setting else n: v for n, v in columns(**changed).items()},
    )
    more = (
        setting
        if "label" in setting or "ill" in setting
        else f"{setting}, label=ill"
        if setting
        else "label=labels"
    )
    with pytest.raises(DataError, match=text):
        data.read(f"{tmp_path}/p.parquet({more})")


def test_files_are_inputs_and_are_predicted_from(tmp_path):
    """An image and a sound beside numbers, each as it would be by itself."""
    rows, texts = columns(slice(0, 12)), "x='photo,voice,age', label=ill, size=8"
    photos, voices = [png(i) for i in range(12)], [wav(i) for i in range(12)]
    rows["photo"] = (FILE, [{"bytes": content, "path": None} for content in photos])
    rows["voice"] = (FILE, [{"bytes": content, "path": None} for content in voices])
    arrow.write(tmp_path / "p.parquet", rows)
    whole = data.read(f"{tmp_path}/p.parquet({texts})")
    assert str(whole.layout).startswith("age float32 number, photo float32 [3, 8, 8], voice float32 [1, 64,")
    assert whole.intake
    told = [text for topic, text in whole.intake.notes if topic == "scaled"]
    assert "column 'photo': images of 9 x 8 were resized to 8 x 8 (size=8)" in told
    assert any(text.startswith("column 'voice': sounds became log-mel spectrograms of") for text in told)
    for name in ("photo", "voice"):
        alone = data.read(f"{tmp_path}/p.parquet(x={name}, label=ill, size=8)")
        which = [each.name for each in whole.layout.inputs].index(name)
        ours = {
            row.tobytes()
            for row in input_column(whole.layout, np.concatenate([whole.x, whole.x_test]), which)
        }
        assert ours == {row.tobytes() for row in np.concatenate([alone.x, alone.x_test])}
        _, x = prediction_inputs.read_inputs(tmp_path / "p.parquet", alone.intake.form)
        assert {row.tobytes() for row in x} == ours
    names, x = prediction_inputs.read_inputs(tmp_path / "p.parquet", whole.intake.form, whole.layout)
    assert len(names) == 12
    assert {row.tobytes() for row in pack_to_layout(whole.layout, x, "new")} == {
        row.tobytes() for row in np.concatenate([whole.x, whole.x_test])
    }
    other = data.read(f"{tmp_path}/p.parquet(x='age,ids', label=ill)")
    with pytest.raises(
        DataError, match=r"E403 p.parquet: column 'photo' holds files, and held numbers where"
    ):
        prediction_inputs.read_inputs(tmp_path / "p.parquet", other.intake.form, whole.layout)
    photos[5] = photos[5][:40]
    rows["photo"] = (FILE, [{"bytes": content, "path": None} for content in photos])
    arrow.write(tmp_path / "p.parquet", rows)
    with pytest.raises(DataError, match=r"E401 Row 5 of .*p.parquet cannot be read as an image"):
        data.read(f"{tmp_path}/p.parquet({texts})")
