"""3,000 spoken digits, 1x64x32, with the speaker of each (Free Spoken Digit Dataset, Jackson et al.).

`x_train`, `x_test` uint8 [N, 64, 32], log-mel spectrograms in dB; `y_train`, `y_test`; `speaker_train`,
`speaker_test`; `speakers`, `classes`
"""

from __future__ import annotations

import numpy as np

from unskew.data.files.archives import open_archive
from unskew.data.samples.dataset import Dataset

SOURCE = "github.com/Jakobovski/free-spoken-digit-dataset (CC BY-SA 4.0)"


def fsdd() -> Dataset:
    """2,700 log-mel spectrograms of shape (1, 64, 32), in dB, to train and 300 to test, of six speakers."""
    archive = open_archive("fsdd", SOURCE)
    x, x_test = (archive[part][:, None].astype(np.float32) for part in ("x_train", "x_test"))
    columns, test_columns = ({"speaker": archive[f"speaker_{part}"]} for part in ("train", "test"))
    return archive.dataset(
        x,
        x_test,
        columns=columns,
        test_columns=test_columns,
        labels={"speaker": archive.words("speakers")},
        mean=(18.61,),
        std=(23.46,),
    )
