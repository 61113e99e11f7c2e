"""The data of a site: tables, folders, lines of Python, and the names of its classes."""

from __future__ import annotations

import numpy as np
import pytest

from unskew.errors import DataError, UsageError
from unskew.federation import site_data


def test_tables_folders_and_lines_of_python(tmp_path):
    (tmp_path / "t.csv").write_text("age,label,weight\n" + "1,sick,2\n3,well,4\n5,sick,6\n" * 10)
    found = site_data.load(str(tmp_path / "t.csv"), ["well", "sick", "unknown"])
    assert found.classes == ("well", "sick", "unknown")
    assert found.shape == (2,)
    assert set(found.y) == {0, 1}
    rows = [f"p{i // 3},{i % 7},{('well', 'sick')[i // 3 % 2]}" for i in range(60)]
    (tmp_path / "visits.csv").write_text("patient,a,label\n" + "\n".join(rows) + "\n")
    found = site_data.load(f"{tmp_path}/visits.csv(group=patient)", ["well", "sick"])
    assert len(found.y_test) == 12
    assert not set(found.columns["patient"]) & set(found.test_columns["patient"])
    with pytest.raises(DataError, match=r"E404 .*'sick'"):
        site_data.load(str(tmp_path / "t.csv"), ["well", "other"])
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef load():\n    return np.zeros((10, 3), np.float32), np.arange(10) % 2\n"
    )
    assert site_data.load(f"{tmp_path / 'mine.py'}:load", ["a", "b", "c"]).classes == ("a", "b", "c")
    for text in ("nothing", f"{tmp_path / 'mine.py'}:none", "no.py:load"):
        with pytest.raises(UsageError, match="E111"):
            site_data.load(text)


def test_a_site_of_one_class_must_name_them_all(tmp_path):
    """Else it would pass its own check and be turned away by the server."""
    np.savez(tmp_path / "one.npz", x=np.random.default_rng(0).random((20, 1, 4, 4)), y=np.zeros(20, np.int64))
    with pytest.raises(DataError, match=r"E404.*one class.*--classes a,b"):
        site_data.load(str(tmp_path / "one.npz"))
    assert site_data.load(str(tmp_path / "one.npz"), ["no", "yes"]).classes == ("no", "yes")


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


@pytest.mark.parametrize("kind", ["csv", "int64"])
@pytest.mark.parametrize(("labels", "classes", "held"), CERTAIN)
def test_numbers_that_can_mean_one_thing_mean_it(tmp_path, labels, classes, held, kind):
    assert loaded(tmp_path, labels, classes, kind) == held


@pytest.mark.parametrize("kind", ["csv", "int64"])
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


def test_numbers_that_the_archive_names_count_as_it_says(tmp_path):
    assert loaded(tmp_path, [1], NY, "int64", classes=["0", "1"]) == {"yes"}
    assert loaded(tmp_path, [0], NY, "int64", classes=["10", "20"]) == {"no"}
    assert loaded(tmp_path, [1], ABC, "int64", classes=["a", "b", "c"]) == {"b"}
