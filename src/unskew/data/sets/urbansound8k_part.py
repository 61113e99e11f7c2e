"""2,985 street sounds, 1x64x87, with the recording of each: part of UrbanSound8K (Salamon et al., 2014).

`x` uint8 [N, 64, 87], log-mel spectrograms in dB; `y`, `fold` (1 to 3: train, 10: test), `recording`;
`classes`
"""

from __future__ import annotations

import numpy as np

from unskew.data.files.archives import open_archive
from unskew.data.samples.dataset import Dataset

SOURCE = "urbansounddataset.weebly.com (CC BY-NC 3.0)"


def urbansound8k_part() -> Dataset:
    """Log-mel spectrograms of shape (1, 64, 87), in dB; the columns `fold` and `recording` make clients."""
    archive = open_archive("urbansound8k_part", SOURCE)
    x = archive["x"][:, None].astype(np.float32)
    test, columns = archive["fold"] == 10, ("fold", "recording")
    return archive.split(x, test, columns, mean=(45.95,), std=(16.98,), group_column="recording")
