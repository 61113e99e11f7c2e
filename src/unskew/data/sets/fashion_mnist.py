"""70,000 grey images of clothing, 28x28 (Fashion-MNIST, Xiao et al., 2017).

`x_train`, `x_test` uint8 [N, 28, 28] or [N, 1, 28, 28]; `y_train`, `y_test`; `classes`
"""

from __future__ import annotations

from unskew.data.files.archives import open_archive
from unskew.data.samples.conversion import unit_interval
from unskew.data.samples.dataset import Dataset

SOURCE = "github.com/zalandoresearch/fashion-mnist (MIT)"


def fashion_mnist() -> Dataset:
    """60,000 samples of shape (1, 28, 28) to train and 10,000 to test, in [0, 1]."""
    archive = open_archive("fashion_mnist", SOURCE)
    x, x_test = (archive[part] for part in ("x_train", "x_test"))
    x, x_test = (unit_interval(part if part.ndim == 4 else part[:, None]) for part in (x, x_test))
    return archive.dataset(x, x_test, mean=(0.2860,), std=(0.3530,))
