"""Sets of which nearly all samples are of one class are told, before a model that always guesses it looks
good."""

import numpy as np
import pytest

import unskew
from unskew import data
from unskew.data.data_overview import class_imbalance, table

X = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)


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


@pytest.mark.parametrize(("rare", "told"), [(0, False), (1, True), (50, True), (51, False), (250, False)])
def test_it_is_told_from_nine_tenths_on(rare, told):
    assert bool(class_imbalance(of_shares(rare))) is told


def test_a_diagnosis_says_that_its_evidence_is_of_other_classes():
    site = np.array(["a", "b"])[np.arange(500) % 2]
    diagnosis = unskew.diagnose(of_shares(5, columns={"site": site}), skew="column:site")
    assert "99.0% of the training samples are of class 'well'" in " ".join(diagnosis.cautions)
    assert diagnosis.pays == "open"
    even = unskew.diagnose(of_shares(250, columns={"site": site}), skew="column:site")
    assert not any("training samples are" in caution for caution in even.cautions)
