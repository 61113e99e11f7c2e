"""442 patients with diabetes: ten measurements, and the disease's progression a year later; always there.

Part of scikit-learn, so that no archive is needed: 354 patients to train, and a fixed 88 to test, drawn
equally from every tenth of the target. The column `sex` (1 and 2, as in the source) can make clients: --skew
column:sex.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.data.samples.dataset import Dataset, Target, with_test_set

SOURCE = (
    "scikit-learn, from Efron, Hastie, Johnstone and Tibshirani: Least Angle Regression (Annals of"
    " Statistics, 2004)"
)
TEST_SHARE = 0.2


def diabetes() -> Dataset:
    """Ten numbers a patient; the target `progression` is between 25 and 346."""
    from sklearn.datasets import load_diabetes

    source: Any = load_diabetes(scaled=False)
    x, y = source.data.astype(np.float32), source.target.astype(np.float64)
    columns = {"sex": x[:, 1].astype(np.int64)}
    dataset = Dataset(
        "diabetes", x, y, x[:0], y[:0], ("progression",), columns, {"sex": columns["sex"][:0]}, source=SOURCE,
        target=Target("progression"),
    )  # fmt: skip
    return with_test_set(dataset, TEST_SHARE).with_constants()
