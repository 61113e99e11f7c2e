"""15,000 colour images of 100 classes, 32x32: a balanced part of CIFAR-100 (Krizhevsky, 2009).

As `cifar10`, with 10,000 images to train and 5,000 to test.
"""

from __future__ import annotations

from unskew.data.files.archives import open_archive
from unskew.data.samples.conversion import unit_interval
from unskew.data.samples.dataset import Dataset

SOURCE = "www.cs.toronto.edu/~kriz/cifar.html (asks to be cited)"


def cifar100_part() -> Dataset:
    """10,000 samples of shape (3, 32, 32) to train and 5,000 to test, in [0, 1]."""
    archive = open_archive("cifar100_part", SOURCE)
    x, x_test = (unit_interval(archive.pictures(part, 32)) for part in ("train_webp", "test_webp"))
    return archive.dataset(x, x_test, mean=(0.5067, 0.4853, 0.4390), std=(0.2682, 0.2577, 0.2774))
