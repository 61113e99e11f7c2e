"""10,299 movement windows, 1x128x3, with the subject of each (UCI-HAR, Anguita et al., 2013).

`x_train`, `x_test` [N, 128, 9] or [N, 1, 128, 9]; `y_train`, `y_test`; `subject_train`, `subject_test`;
`classes`
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from unskew.data.files.archives import open_archive
from unskew.data.samples.dataset import Dataset

SOURCE = "archive.ics.uci.edu/dataset/240 (asks to be cited)"


def uci_har(
    signals: Annotated[int, Ge(1), Le(9), "how many of the nine signals, from the first"] = 3,
) -> Dataset:
    """7,352 samples of shape (1, 128, signals) to train and 2,947 to test; the column `subject` makes
    clients."""
    archive = open_archive("uci_har", SOURCE)
    x, x_test = (archive[part] for part in ("x_train", "x_test"))
    x, x_test = (
        part.reshape(len(part), 1, 128, -1)[..., :signals].astype(np.float32) for part in (x, x_test)
    )
    subjects, test_subjects = ({"subject": archive[f"subject_{part}"]} for part in ("train", "test"))
    return archive.dataset(x, x_test, columns=subjects, test_columns=test_subjects, group_column="subject")
