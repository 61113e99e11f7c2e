"""1,797 handwritten digits, 8x8 (UCI); always there.

Part of scikit-learn, so that no archive is needed: 1,437 images to train, and a fixed stratified 360 to test.
"""

from __future__ import annotations

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.holdout import with_test_set

SOURCE = "scikit-learn (CC BY 4.0)"
TEST_SAMPLES = 360


def digits() -> Dataset:
    """Samples of shape (1, 8, 8) in [0, 1]."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    none = np.zeros(0, np.int64)
    whole = Dataset("digits", x, y.astype(np.int64), x[:0], none, tuple("0123456789"), mean=(0.3053,), std=(0.3760,))
    return with_test_set(whole, TEST_SAMPLES / len(y))
