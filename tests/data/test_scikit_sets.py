"""The sets that come with scikit-learn: which number is which, and what the made ones are made of."""

from __future__ import annotations

import numpy as np
import pytest

from unskew import data


def test_diabetes_is_the_sources_table_with_the_patients_sex_as_a_column():
    source = pytest.importorskip("sklearn.datasets").load_diabetes(scaled=False)
    found = data.read("diabetes")
    assert (found.x.shape, found.x_test.shape) == ((354, 10), (88, 10))
    x, y = np.concatenate([found.x, found.x_test]), np.concatenate([found.y, found.y_test])
    rows = {tuple(row.astype(np.float32)): target for row, target in zip(source.data, source.target)}
    natural = found.target.center + found.target.scale * y if abs(y).max() < 10 else y
    assert [rows[tuple(row)] for row in x] == pytest.approx(list(natural.ravel()))
    sex = source.feature_names.index("sex")
    assert np.array_equal(found.columns["sex"], found.x[:, sex].astype(int))
    assert np.array_equal(found.test_columns["sex"], found.x_test[:, sex].astype(int))
    assert set(found.columns["sex"].tolist()) == {1, 2}


def test_two_digits_joins_digits_of_one_side_and_says_both():
    single, found = data.read("digits"), data.read("two_digits")
    for x, y, own, labels in (
        (found.x, found.y, single.x, single.y),
        (found.x_test, found.y_test, single.x_test, single.y_test),
    ):
        assert x.shape == (len(own), 1, 8, 16)
        assert np.array_equal(x[..., :8], own)
        known: dict[bytes, set[int]] = {}
        for image, label in zip(own, labels):
            known.setdefault(image.tobytes(), set()).add(int(label))
        for image, said, left in zip(x[..., 8:], y, labels):
            right = known[np.ascontiguousarray(image).tobytes()]
            assert any(set(np.flatnonzero(said).tolist()) == {int(left), one} for one in right)
    assert (found.mean, found.std) == (single.mean, single.std)
    assert {int(n) for n in found.y.sum(1)} == {1, 2}


def test_digits_have_values_from_0_to_1_and_the_label_of_the_source():
    source = pytest.importorskip("sklearn.datasets").load_digits()
    found = data.read("digits")
    assert (found.x.min(), found.x.max()) == (0.0, 1.0)
    labels = {
        (image / 16).astype(np.float32).tobytes(): int(y) for image, y in zip(source.images, source.target)
    }
    assert [labels[x.tobytes()] for x in found.x[:, 0]] == found.y.tolist()
    assert found.classes == tuple("0123456789")
    assert found.mean == pytest.approx((found.x.mean(),), abs=2e-3)
    assert found.std == pytest.approx((found.x.std(),), abs=2e-3)
