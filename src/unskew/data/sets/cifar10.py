"""60,000 colour images of ten classes, 32x32 (CIFAR-10, Krizhevsky, 2009).

`x_train`, `x_test` uint8 [N, 3, 32, 32]; `y_train`, `y_test`; `classes`. Or `train_webp`, `test_webp` in
place of the images: strips of 100 as lossless WebP bytes, which `train_off` and `test_off` divide
"""

from __future__ import annotations

from unskew.data.files.archives import open_archive
from unskew.data.samples.conversion import unit_interval
from unskew.data.samples.dataset import Dataset

SOURCE = "www.cs.toronto.edu/~kriz/cifar.html (asks to be cited)"


def cifar10() -> Dataset:
    """50,000 samples of shape (3, 32, 32) to train and 10,000 to test, in [0, 1]."""
    archive = open_archive("cifar10", SOURCE)
    x, x_test = (unit_interval(archive.images(part, 32)) for part in ("train", "test"))
    return archive.dataset(x, x_test, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
