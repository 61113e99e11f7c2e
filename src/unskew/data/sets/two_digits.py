"""Two handwritten digits side by side, 8x16: the labels say which of the ten digits occur; always there.

Each image joins two of the set `digits`, training images with training images and test images with test
images, drawn by a fixed seed: 1,437 to train, 360 to test. Both may be one digit, so a sample has one label
or two.
"""

from __future__ import annotations

import numpy as np

from unskew.data.samples.dataset import Dataset
from unskew.data.sets.digits import digits

SOURCE = "made of the set digits: scikit-learn (CC BY 4.0)"


def two_digits() -> Dataset:
    """Samples of shape (1, 8, 16) in [0, 1], labels bool [N, 10]."""
    single, rng = digits(), np.random.default_rng(2)
    (x, y), (x_test, y_test) = (
        _join_images(*part, rng) for part in ((single.x, single.y), (single.x_test, single.y_test))
    )
    return Dataset("two_digits", x, y, x_test, y_test, single.classes, mean=single.mean, std=single.std)


def _join_images(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Every image joined with a second one, and the digits that occur."""
    partners = rng.permutation(len(x))
    labels = np.zeros((len(x), 10), bool)
    labels[np.arange(len(x)), y] = labels[np.arange(len(x)), y[partners]] = True
    return np.concatenate([x, x[partners]], axis=3), labels
