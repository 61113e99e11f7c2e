"""What recipes make of original files, row by row, and what they refuse: tiny files whose samples are known
by heart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.test_downloads import TEN, a_har, folder
from unskew.data.downloads.recipes import RECIPES, OriginalSamples
from unskew.errors import DataError


def made(name, path) -> OriginalSamples:
    return RECIPES[name].read(path, name)


def medical(path, y, y_test, x=TEN, **more):
    pixels = x.transpose(0, 2, 3, 1)
    given = {
        "train_images": pixels,
        "train_labels": y,
        "test_images": pixels[: len(y_test)],
        "test_labels": y_test,
    }
    np.savez_compressed(path, **{**given, **more})
    return path


def test_medical_images_have_one_label_each(tmp_path):
    """And a class that only the test part has is one."""
    y = np.arange(10, dtype=np.uint8)[:, None] % 2
    samples = made("pathmnist", medical(tmp_path / "pathmnist.npz", y, np.array([[3], [1]], np.uint8)))
    assert samples.classes == ("0", "1", "2", "3")
    assert samples.y_test is not None
    assert samples.y_test.tolist() == [3, 1]
    assert (samples.x == TEN).all()
    for wrong in (y[:4], np.repeat(y, 2, 1), y / 2):
        with pytest.raises(DataError, match=r"E401 .*expected one whole number for each image"):
            made("pathmnist", medical(tmp_path / "pathmnist.npz", wrong, y[:2]))


def test_the_signals_of_a_phone_keep_their_order(tmp_path):
    """The tiny files hold 1,000 times the number of the signal."""
    samples = made("uci_har", folder(tmp_path / "h", a_har()))
    assert samples.x[0, 0, 0].tolist() == [1000.0 * i for i in range(9)]
    assert samples.x[1, 0, 5].tolist() == [128 + 5 + 1000.0 * i for i in range(9)]
    assert samples.y.tolist() == [0, 1, 0]
    contents = a_har()
    contents["UCI HAR Dataset/train/y_train.txt"] = b"1\n2\n"
    with pytest.raises(DataError, match=r"E401 .*the files of the part 'train' differ in length"):
        made("uci_har", folder(tmp_path / "short", contents))
