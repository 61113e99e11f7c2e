"""What recipes make of original files, row by row, and what they refuse: tiny files whose samples are known
by heart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.test_downloads import TEN, a_har, folder, leaf
from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, recipes
from unskew.errors import DataError


def made(name, path) -> OriginalSamples:
    return recipes()[name].read(OriginalFiles(path, name))


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


def test_leafs_parts_are_folders_not_parts_of_names(tmp_path):
    """A file of the training part may be called `latest`. Pixels stay as LEAF has them."""
    one, other = {"w1": ([[0.0] * 784, [0.25] * 784], [3, 61])}, {"w2": ([[1.0] * 784], [10])}
    origin = folder(tmp_path / "data", {"train/latest.json": leaf(one), "test/trained.json": leaf(other)})
    samples = made("femnist", origin)
    assert samples.y_test is not None
    assert (samples.y.tolist(), samples.y_test.tolist()) == ([3, 61], [10])
    assert samples.x[:, 0, 0, 0].tolist() == [0, 64]
    unequal = folder(tmp_path / "other", {"a.json": leaf({"w": ([[0.0] * 784], [1, 2])})})
    with pytest.raises(DataError, match=r"E401 .*w has 1 samples and 2 labels"):
        made("femnist", unequal)


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
