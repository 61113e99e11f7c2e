"""Texts that name data and how they are dealt out, archives of named sets, and which volumes belong
together."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.test_folders import pictures
from tests.data.test_volumes import volume
from unskew.data import registry
from unskew.data.files.archives import Archive
from unskew.data.files.tree import VOLUME_ENDINGS, read_tree
from unskew.data.readers.from_volumes import cut_mask, cut_slices
from unskew.data.readers.scans import read_scans
from unskew.errors import DataError


def test_the_column_by_which_a_text_divides(tmp_path):
    """That of a table by its name; where a table lists files, the column becomes `site`."""
    pictures(tmp_path / "scans", "a", "b")
    (tmp_path / "t.csv").write_text("x,bank\n1,a\n")
    assert registry.divided_by(f"{tmp_path}/t.csv(site=bank)") == "bank"
    assert registry.divided_by(f"{tmp_path}/scans(site=hospital)") == "site"
    for text in (f"{tmp_path}/t.csv", f"{tmp_path}/t.csv(label=x)", "digits"):
        assert registry.divided_by(text) == ""


def test_sets_that_are_not_on_this_machine_are_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    (tmp_path / "fashion_mnist.npz").write_bytes(b"")
    assert [registry.at_hand(name) for name in ("digits", "cifar10", "fashion_mnist")] == [True, False, True]
    missing = {name for name, line in registry.describe().items() if "not found: set UNSKEW_DATA" in line}
    assert missing == set(registry.names()) - {*registry.BUILT_IN, "fashion_mnist"}


def strips(*shades):
    """Strips of two pictures of 4 x 4 each, of these shades, one below the other, as bytes and where each
    begins."""
    encoded = []
    for one, other in zip(shades[::2], shades[1::2]):
        buffer, strip = io.BytesIO(), np.zeros((8, 4, 3), np.uint8)
        strip[:4], strip[4:] = one, other
        Image.fromarray(strip).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    offsets = np.cumsum([0, *map(len, encoded)])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def test_pictures_in_strips_keep_their_order():
    """Each has its label by its place."""
    shades = (10, 60, 110, 160, 210, 250)
    buffer, offsets = strips(*shades)
    archive = Archive(Path("a.npz"), {"train_webp": buffer, "train_off": offsets})
    assert archive.pictures("train_webp", 4)[:, 0, 0, 0].tolist() == list(shades)
    with pytest.raises(DataError, match=r"E401 a\.npz lacks the array 'y'; it holds train_webp, train_off"):
        archive.labels("y")
    with pytest.raises(DataError, match=r"E401 a\.npz: pictures in 'train_webp' cannot be read"):
        Archive(Path("a.npz"), {"train_webp": buffer, "train_off": offsets + 3}).pictures("train_webp", 4)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("p1/scan.nii", "p1/scan_seg.nii", "p1/scan-label.nii"), "scan.nii has 2 masks"),
        (("p1/scan.nii", "p2/scan.nii", "p2/scan_seg.nii"), "p1/scan.nii has no mask"),
        (("p1/t1.nii", "p1/t2.nii", "p1/mask.nii"), "would share the mask mask.nii"),
    ],
)
def test_an_image_has_one_mask_of_its_own(tmp_path, names, says):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=rf"E404 .*{says}"):
        read_scans(read_tree(tmp_path, VOLUME_ENDINGS))


def test_what_is_beside_a_slice_is_as_dark_as_its_darkest_pixel():
    """CT has air at -1,000; zeros beside it would be water."""
    square = cut_slices(
        volume(np.full((4, 8, 1), 7.0) - 1000 * (np.arange(8)[None, :, None] == 0)), "axial", 8
    )[0]
    assert square.min() == -993
    assert (square[:, [0, 1, 6, 7]] == -993).all()
    assert not cut_mask(volume(np.full((4, 8, 1), 2)), "axial", 8)[0][:, [0, 1, 6, 7]].any()
