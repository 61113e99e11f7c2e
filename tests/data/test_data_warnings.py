"""A column that tells the label by itself is told, and none that only happens to agree, or is a good hint; and
so is a class that nearly all samples have, before a model that always guesses it looks good.
"""

import numpy as np
import pytest

from tests.cli.calling import call
from unskew import data
from unskew.data.data_overview import class_imbalance, leaks, table

RNG = np.random.default_rng(0)
N = 120
A, Y = RNG.random(N).astype(np.float32), np.arange(N) % 3
WORDS = np.array(["yes", "no", "perhaps"])
SAYS = (
    "has a value of its own for each class in all training samples: leave out what was made from the labels"
)


def of(*columns, y=Y, **more):
    return leaks(data.arrays(np.stack(columns, 1).astype(np.float32), y, test=0, **more))


@pytest.mark.parametrize("copy", [Y, 7 - 2.5 * Y, np.array([4, 1, 9])[Y]])
def test_a_copy_of_the_labels_is_told(copy):
    assert of(A, copy) == f"column 1 {SAYS}, or scores mean nothing"
    assert of(A, copy, copy).startswith("each of column 1, column 2 has a value of its own")
    assert of(A, copy, y=WORDS[Y]).startswith(f"column 1 {SAYS}")


@pytest.mark.parametrize(
    "hint",
    [
        A,
        np.ones(N),
        Y > 0,  # a coarser kind of class, such as the superclass
        np.where(np.arange(N) == 77, 5, Y),
        Y * 2 + np.arange(N) % 2,
    ],
)
def test_a_good_hint_is_no_copy(hint):
    assert not of(A, hint)


def test_words_of_a_table_are_compared_as_one_column(tmp_path):
    lines = [f"{a:.5f},{WORDS[(y + 1) % 3]},{WORDS[(y > 0) * 1]},{y}" for a, y in zip(A, Y)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,copy,coarse,label", *lines]) + "\n")
    dataset = data.read(path)
    assert f"warning  column 'copy' {SAYS}" in table(dataset)
    assert (
        "column 'copy'"
        in call("run", "fedavg", "--data", str(path), "--rounds", "1", "--clients", "2", "--dry-run").out
    )
    assert "warning" not in table(data.read(path, label="coarse"))


def test_the_target_in_another_unit_is_told():
    price = RNG.normal(200, 50, N)
    assert of(A, price * 100 - 7, y=price, target="price").startswith(
        "column 1 is the target in another unit"
    )
    assert not of(A, np.log(price), y=price, target="price")
    assert not of(A, np.round(price), y=price, target="price")
    assert not of(A, 3 * (Y % 2), y=(Y % 2) * 1.0, target="price")


def test_one_of_several_labels_is_told():
    flags = np.stack([Y > 0, RNG.random(N) > 0.5], 1)
    assert of(A, ~flags[:, 1], y=flags.astype(int), target="fever,cough").startswith(
        "column 1 tells a label by itself"
    )
    assert not of(A, A > 0.5, y=flags.astype(int), target="fever,cough")


def test_of_several_inputs_those_of_one_number_are_asked():
    scans = RNG.random((N, 2, 4, 4)).astype(np.float32)
    assert leaks(data.arrays({"scan": scans, "age": Y * 10.0}, Y, test=0)).startswith(
        "input age has a value of its own"
    )
    assert not leaks(data.arrays({"scan": scans, "other": scans}, Y, test=0))


X = RNG.normal(size=(500, 3)).astype(np.float32)


def of_shares(rare: int, **more):
    labels = np.where(np.arange(500) < rare, "ill", "well")
    return data.arrays(X, labels, X[:10], np.array(["ill", "well"] * 5), **more)


def test_a_class_that_nearly_all_samples_have_is_told():
    text = (
        "99.0% of the training samples are of class 'well', so a model that always answers so has that"
        " accuracy; 'ill' has 5. Look at --metrics auroc,balanced_accuracy as well"
    )
    rare = of_shares(5)
    assert class_imbalance(rare) == text
    assert f"warning  {text}" in table(rare)
