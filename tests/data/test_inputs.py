"""Samples without labels are read as the training samples were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unskew import data
from unskew.data import prediction_inputs
from unskew.data.readers.from_npz import save_dataset
from unskew.errors import DataError

TABLE = "age,smokes,town,dose,outcome\n" + "".join(
    f"{30 + i * i},{('no', 'yes')[i % 2]},{('Ulm', 'Bonn', 'Köln')[i % 3]},{i / 4},{('ill', 'well')[i % 2]}\n"
    for i in range(12)
)


@pytest.fixture
def trained(tmp_path: Path) -> data.Dataset:
    (tmp_path / "t.csv").write_text(TABLE)
    return data.read(str(tmp_path / "t.csv"), label="outcome")


def form_of(dataset: data.Dataset) -> dict[str, object]:
    assert dataset.intake is not None
    return dict(dataset.intake.form)


def test_columns_are_found_by_name_and_words_get_the_numbers_of_training(trained, tmp_path):
    """In another order, without labels, with other columns beside, and without rows of every kind of word."""
    (tmp_path / "new.csv").write_text("note,town,dose,smokes,age\nx,Köln,0.5,yes,41\ny,Ulm,1,yes,30\n")
    names, x = prediction_inputs.read_inputs(tmp_path / "new.csv", form_of(trained))
    assert names == ["2", "3"]
    assert x.tolist() == [[41, 1, 0, 1, 0, 0.5], [30, 1, 0, 0, 1, 1]]  # age, smokes, Bonn, Köln, Ulm, dose
    _, again = prediction_inputs.read_inputs(tmp_path / "t.csv", form_of(trained))
    rows = {row.tobytes() for row in (*trained.x, *trained.x_test)}
    assert {row.tobytes() for row in again} == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age,town,dose\n41,Ulm,1\n", "E403 new.csv has no column 'smokes'"),
        (
            "age,smokes,town,dose\n41,yes,Rom,1\n",
            "E405 new.csv: column 'town' holds 'Rom' at line 2 .*knows 'Bonn'",
        ),
        ("age,smokes,town,dose\nold,yes,Ulm,1\n", "E405 new.csv: column 'age' holds words such as"),
        ("age,smokes,town,dose\n41,yes,Ulm,\n", "E405 new.csv: column 'dose' has no value at line 2"),
    ],
)
def test_tables_that_do_not_fit_are_refused(trained, text, says, tmp_path):
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        prediction_inputs.read_inputs(tmp_path / "new.csv", form_of(trained))


def test_images_get_the_size_and_fit_of_training(tmp_path):
    rng = np.random.default_rng(0)
    for part, name in (("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")):
        (tmp_path / "set" / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9, 14, 3)).astype(np.uint8)).save(
            tmp_path / "set" / part / f"{name}.png"
        )
    dataset = data.read(f"{tmp_path / 'set'}(size=8,fit=crop)")
    names, x = prediction_inputs.read_inputs(tmp_path / "set", form_of(dataset))
    assert names == ["a/1.png", "a/2.png", "b/3.png", "b/4.png"]
    assert {v.tobytes() for v in x} == {v.tobytes() for v in (*dataset.x, *dataset.x_test)}
    one, x_one = prediction_inputs.read_inputs(tmp_path / "set/b/3.png", form_of(dataset))
    assert (one, x_one.tobytes()) == (["3.png"], x[2:3].tobytes())
    save_dataset(dataset, tmp_path / "kept.npz")
    assert form_of(data.read(str(tmp_path / "kept.npz"))) == form_of(dataset)
    (tmp_path / "t.csv").write_text(TABLE)
    with pytest.raises(DataError, match=r"E403 .*t.csv holds table; the model was trained on images"):
        prediction_inputs.read_inputs(tmp_path / "t.csv", form_of(dataset))
    with pytest.raises(DataError, match=r"E402 there is no"):
        prediction_inputs.read_inputs(tmp_path / "nothing", {})


def test_arrays_are_read_without_pickle(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3)), y=np.zeros(2))
    assert prediction_inputs.read_inputs(tmp_path / "x.npz", {})[1].shape == (2, 3)
    np.savez(tmp_path / "two.npz", a=np.ones((2, 3)), b=np.ones(2))
    with pytest.raises(DataError, match=r"E403 .*holds a, b; call the one to predict from 'x'"):
        prediction_inputs.read_inputs(tmp_path / "two.npz", {})
    np.save(tmp_path / "bomb.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="E401"):
        prediction_inputs.read_inputs(tmp_path / "bomb.npy", {})
