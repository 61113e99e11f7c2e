"""What recipes make of original files, row by row, and what they refuse: tiny files whose samples are known
by heart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.test_downloads import TEN, a_har, folder
from unskew import data
from unskew.data.downloads import get
from unskew.data.downloads.recipes import RECIPES, OriginalSamples
from unskew.errors import DataError


def made(name, path) -> OriginalSamples:
    return RECIPES[name].read(path, name)


def test_a_file_of_medmnist_is_read_as_it_is(tmp_path):
    """Channels come last, or are missing, and labels are [N, 1]; a class that only the test part has is one."""
    y, colours = np.arange(10, dtype=np.uint8)[:, None] % 2, TEN.transpose(0, 2, 3, 1)
    labels = {"train_labels": y, "test_labels": np.array([[3], [1]], np.uint8)}
    for images, first in ((colours, TEN), (colours[..., 0], TEN[:, :1])):
        np.savez(tmp_path / "m.npz", train_images=images, test_images=images[:2], val_images=images, **labels)
        read = data.read(tmp_path / "m.npz")
        assert np.allclose(read.x, first / np.float32(255))
        assert (len(read.y_test), read.classes, read.y_test.tolist()) == (2, ("0", "1", "2", "3"), [3, 1])
        got = made("bloodmnist", tmp_path / "m.npz")
        assert np.array_equal(got.x, first)
        assert (got.y_test.tolist(), got.classes) == ([3, 1], ("0", "1", "2", "3"))
    np.savez(tmp_path / "m.npz", train_images=images, test_images=images[:1], **labels)
    with pytest.raises(DataError, match=r"E401 .*other arrays than images"):
        made("bloodmnist", tmp_path / "m.npz")


def test_a_published_md5_is_compared(tmp_path):
    (tmp_path / "bloodmnist.npz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"E401 bloodmnist.npz has the digest .*7053d0359d"):
        get.get("bloodmnist", tmp_path / "bloodmnist.npz", tmp_path / "out")


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
