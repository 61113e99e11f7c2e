"""Files that a CSV lists: which row belongs to which file, what their columns become, and inputs beside
files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import unskew
from unskew import data
from unskew.data import prediction_inputs
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.packing import input_column
from unskew.errors import DataError

N = 24
AGES = [40 + (7 * i) % 31 for i in range(N)]
SETTINGS = {"clients": 2, "rounds": 1, "epochs": 1, "batch": 8, "workers": 1, "skew": "iid"}


def grey(i: int) -> int:
    return 10 * i + 5


def row(i: int) -> dict[str, Any]:
    """What the table says of image i; its grey says which it is."""
    return {
        "file": f"{'ab'[i % 2]}/{i // 2:02}.png",
        "state": ("ill", "well")[i % 3 == 0],
        "ward": ("north", "south", "west")[i % 3],
        "age": AGES[i],
        "sex": ("f", "m")[i // 2 % 2],
        "dose": AGES[i] / 8,
        "fever": i % 2,
        "cough": int(i % 5 == 0),
        "patient": f"p{i // 3}",
    }


def write(root, rows=None, name="list.csv"):
    """The folder, in which every image is of one grey, and the table of these rows."""
    for i in range(N):
        place = root / "files" / "ab"[i % 2] / f"{i // 2:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), grey(i)).save(place)
    rows = [row(i) for i in range(N)] if rows is None else rows
    lines = [",".join(rows[0]), *(",".join(map(str, one.values())) for one in rows)]
    (root / name).write_text("\n".join(lines) + "\n")
    return root


def read(root, **more) -> Dataset:
    return data.folder(root, size=8, **more)


def known(d: Dataset) -> dict[int, Any]:
    """Of every sample the number of its image, and its label."""
    x = (
        input_column(
            d.layout, np.concatenate([d.x, d.x_test]), [e.name for e in d.layout.inputs].index("image")
        )
        if d.layout
        else None
    )
    x = np.concatenate([d.x, d.x_test]) if x is None else x
    greys = np.rint(x.reshape(len(x), -1)[:, 0] * 255).astype(int)
    return {(int(g) - 5) // 10: y for g, y in zip(greys, np.concatenate([d.y, d.y_test]).tolist())}


def test_equal_names_in_two_folders_are_two_files(tmp_path):
    """A row took the label of whichever file of its name came last."""
    d = read(write(tmp_path), label="state")
    assert d.classes == ("ill", "well")
    assert known(d) == {i: int(i % 3 == 0) for i in range(N)}


@pytest.mark.parametrize(
    "named",
    ["/elsewhere/files/{}", "files\\{}", "{}", "./{}"],
)
def test_a_path_counts_from_its_end(named, tmp_path):
    rows = [row(i) for i in range(N)]
    for one in rows:
        one["file"] = named.format(one["file"])
    assert known(read(write(tmp_path, rows), label="state")) == {i: int(i % 3 == 0) for i in range(N)}


def without_folders(rows):
    for one in rows:
        one["file"] = one["file"].rpartition("/")[2]


def twice(rows):
    rows.append({**rows[3], "state": "ill"})


def other_age(rows):
    rows.append({**rows[3], "age": 99})


def no_label(rows):
    rows[4]["state"] = ""


def no_site(rows):
    rows[4]["ward"] = "NA"


def no_age(rows):
    rows[4]["age"] = ""


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        (
            without_folders,
            {},
            (
                r"E404 '00.png' at line 2 of .*list.csv may be .*a/00.png or .*b/00.png; write the path of"
                r" each file"
            ),
        ),
        (
            other_age,
            {"x": "image,age"},
            r"E404 .*list.csv lists 01.png at line 5 and at line 26; keep",
        ),
        (
            twice,
            {},
            r"E404 .*list.csv lists 01.png at line 5 and at line 26; keep one of them",
        ),
        (no_label, {}, r"E404 list.csv: column 'state' has no label at line 6"),
        (no_site, {"site": "ward"}, r"E403 list.csv: column 'ward' has no site at line 6"),
        (no_age, {"x": "image,age"}, r"E405 list.csv: column 'age' has no value at line 6"),
        (None, {"x": "image,weight"}, r"E403 list.csv has no column 'weight'"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(change, more, says, tmp_path):
    rows = [row(i) for i in range(N)]
    if change:
        change(rows)
    with pytest.raises(DataError, match=says):
        read(write(tmp_path, rows), label="state", **more)


def test_a_number_and_several_labels_are_learnt(tmp_path):
    """Until then only classes were."""
    write(tmp_path)
    d = read(tmp_path, target="dose")
    assert d.target
    assert d.target.name == "dose"
    assert known(d) == {i: AGES[i] / 8 for i in range(N)}
    d = read(tmp_path, target="fever,cough")
    assert d.classes == ("fever", "cough")
    assert known(d) == {i: [bool(i % 2), i % 5 == 0] for i in range(N)}
    with pytest.raises(DataError, match="E403 label=state names classes, and target=dose a number"):
        read(tmp_path, label="state", target="dose")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3 * 64 + 2, 8), nn.Linear(8, 2)

    def forward(self, image: Tensor, age: Tensor, sex: Tensor) -> Tensor:
        return self.head(self.body(torch.cat([image.flatten(1), age[:, None], sex[:, None]], 1)).relu())


def test_columns_are_inputs_beside_the_image(tmp_path):
    """They train to the bits of the same arrays, and a folder with such a table is predicted from."""
    rows = [row(i) for i in range(N)]
    for one in rows:
        del one["patient"]  # by which the test set would be held out
    write(tmp_path, rows)
    d = read(tmp_path, label="state", x="image,age,sex")
    assert str(d.layout) == "age float32 number, image float32 [3, 8, 8], sex float32 number"
    assert known(d) == {i: int(i % 3 == 0) for i in range(N)}
    assert "input 'sex': words became 0 and 1 (2 kinds)" in [t for _, t in d.intake.notes]
    text = f"{tmp_path}(label=state, x='image,age,sex', size=8)"
    result = unskew.run("fedavg", text, model=Net(), **SETTINGS)
    order = np.argsort([f"{'ab'[i % 2]}/{i // 2:02}" for i in range(N)])
    images = np.stack([np.full((3, 8, 8), grey(i), np.uint8) for i in range(N)])[order] / np.float32(255)
    given = {
        "image": images,
        "age": np.array(AGES, np.float32)[order],
        "sex": (order // 2 % 2).astype(np.float32),
    }
    theirs = unskew.run("fedavg", (given, (order % 3 == 0).astype(int)), model=Net(), **SETTINGS)
    assert result.digest == theirs.digest
    new = tmp_path / "new"
    write(
        new,
        [{name: value for name, value in row(i).items() if name in ("file", "sex", "age")} for i in range(9)],
    )
    assert result.federation.intake
    names, x = prediction_inputs.read_inputs(new, result.federation.intake.form, result.federation.layout)
    assert names[:2] == ["files/a/00.png", "files/a/01.png"]
    assert np.array_equal(x["age"], np.array([AGES[i] for i in (0, 2, 4, 6, 8, 1, 3, 5, 7)], np.float32))
    assert result.predict_proba(x).shape == (9, 2)
    (new / "list.csv").unlink()
    with pytest.raises(
        DataError,
        match=r"E403 .*new holds no CSV that lists its files, and the model takes age, sex",
    ):
        prediction_inputs.read_inputs(new, result.federation.intake.form, result.federation.layout)
    with pytest.raises(DataError, match=r"E403 .*00.png is no folder with a CSV"):
        prediction_inputs.read_inputs(
            new / "files" / "a" / "00.png", result.federation.intake.form, result.federation.layout
        )
