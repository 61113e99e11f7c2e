"""1,797 handwritten digits, 8x8 (UCI); always there.

Part of scikit-learn, so that no archive is needed: 1,437 images to train, and a fixed stratified 360 to test.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from unskew.data.samples.dataset import Dataset, with_test_set

SOURCE = "scikit-learn (CC BY 4.0)"
TEST_SAMPLES = 360
FILE = "datasets/data/digits.csv.gz"
"""The path within scikit-learn."""


def digits() -> Dataset:
    """Samples of shape (1, 8, 8) in [0, 1]."""
    x, y = _pixels_and_classes()
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    none = np.zeros(0, np.int64)
    dataset = Dataset(
        "digits", x, y.astype(np.int64), x[:0], none, tuple("0123456789"), mean=(0.3053,), std=(0.3760,)
    )
    return with_test_set(dataset, TEST_SAMPLES / len(y))


def _pixels_and_classes() -> tuple[np.ndarray, np.ndarray]:
    """float64 [N, 64] from 0 to 16, and classes [N], N = 1797, read from scikit-learn's file: importing
    scikit-learn takes half a second."""
    installed = find_spec("sklearn")
    if installed and installed.origin and (file := Path(installed.origin).parent / FILE).is_file():
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits  # another version has the file elsewhere

    x, y = load_digits(return_X_y=True)
    return np.asarray(x), np.asarray(y)
