"""Which class is taken for which.

Letters: N samples, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(guess_N: Tensor, y_N: Tensor, classes: int) -> Tensor:
    """Samples of each true class (rows) that were given each class (columns), int64 [C, C]."""
    return torch.bincount(y_N * classes + guess_N, minlength=classes * classes).reshape(classes, classes)
