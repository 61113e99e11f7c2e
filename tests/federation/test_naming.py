"""Labels of a site that holds samples of some classes only, under the names on which all sites have
agreed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import DataError
from unskew.federation import site_data

X = np.random.default_rng(0).random((30, 3)).astype(np.float32)
ABC, NY = ["a", "b", "c"], ["no", "yes"]


def loaded(tmp_path, labels, agreed, kind, **more):
    """The labels of a site by the names of their classes, or the error."""
    y = [labels[i % len(labels)] for i in range(30)]
    if kind == "csv":
        rows = [",".join(map(str, (*x, label))) for x, label in zip(X, y)]
        (tmp_path / "t.csv").write_text("\n".join(["p,q,r,label", *rows]) + "\n")
        data = site_data.load(str(tmp_path / "t.csv"), agreed)
    else:
        np.savez(tmp_path / "t.npz", x=X, y=np.array(y, dtype=kind), **more)
        data = site_data.load(str(tmp_path / "t.npz"), agreed)
    assert data.classes == tuple(agreed)
    return {data.classes[i] for i in np.concatenate([data.y, data.y_test])}


CERTAIN = [
    ([0, 1], NY, {"no", "yes"}),
    ([1, 2], NY, {"no", "yes"}),
    ([2], NY, {"yes"}),
    ([0], NY, {"no"}),
    ([0, 2], ABC, {"a", "c"}),
    ([2, 3], ABC, {"b", "c"}),
    ([1, 2, 3], ABC, {"a", "b", "c"}),
    ([1], ["1", "2"], {"1"}),
    ([1, 2], ["0", "1", "2"], {"1", "2"}),
]
"""(labels, all classes, those that the site holds)"""


@pytest.mark.parametrize("kind", ["csv", "int64", "float64", "U1"])
@pytest.mark.parametrize(("labels", "classes", "held"), CERTAIN)
def test_numbers_that_can_mean_one_thing_mean_it(tmp_path, labels, classes, held, kind):
    assert loaded(tmp_path, labels, classes, kind) == held


@pytest.mark.parametrize("kind", ["csv", "int64", "float64", "U1"])
@pytest.mark.parametrize(("labels", "classes"), [([1], NY), ([1, 2], ABC), ([2], ABC), ([1], ABC)])
def test_numbers_that_can_mean_two_things_are_refused(tmp_path, labels, classes, kind):
    """A site that holds no sample of class 0 was trained on each label as the class before it, without a
    word."""
    low = labels[0]
    told = (
        f"E404 .* its label {low} is '{classes[low]}' if labels count from 0, '{classes[low - 1]}' if from 1;"
        " write"
    )
    with pytest.raises(DataError, match=told):
        loaded(tmp_path, labels, classes, kind)


def test_numbers_beyond_the_classes_are_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"E404 .* holds the label 3; --classes names 3, which are labels 0 to 2"
    ):
        loaded(tmp_path, [0, 3], ABC, "int64")
    with pytest.raises(
        DataError, match=r"E404 .* holds the label 4; --classes names 3, which are labels 1 to 3"
    ):
        loaded(tmp_path, [1, 4], ABC, "int64")
    with pytest.raises(
        DataError, match=r"E404 .* holds the label 2; --classes names 2, which are labels 0 to 1"
    ):
        loaded(tmp_path, [0, 2], NY, "int64")


def test_numbers_that_the_archive_names_count_as_it_says(tmp_path):
    assert loaded(tmp_path, [1], NY, "int64", classes=["0", "1"]) == {"yes"}
    assert loaded(tmp_path, [0], NY, "int64", classes=["10", "20"]) == {"no"}
    assert loaded(tmp_path, [1], ABC, "int64", classes=["a", "b", "c"]) == {"b"}


def test_columns_of_one_hot_labels_are_all_classes_also_those_without_a_sample(tmp_path):
    y = np.eye(3, dtype=np.int64)[[1 + i % 2 for i in range(30)]]
    np.savez(tmp_path / "t.npz", x=X, y=y)
    data = site_data.load(str(tmp_path / "t.npz"), ABC)
    assert set(data.y) == {1, 2}
    assert site_data.load(str(tmp_path / "t.npz")).classes == ("0", "1", "2")


def test_folders_that_are_numbers_are_no_places(tmp_path):
    from PIL import Image

    for label in ("2", "3"):
        (tmp_path / "scans" / label).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (8, 8), 40 * i).save(tmp_path / "scans" / label / f"{i}.png")
    data = site_data.load(f"{tmp_path}/scans(size=8)", ABC)
    assert data.classes == tuple(ABC)
    assert set(data.y) == {1, 2}
