"""Texts that name data and how they are dealt out, and archives of named sets."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.test_folders import pictures
from unskew.data import registry
from unskew.data.files.archives import Archive
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


def test_pictures_in_strips_keep_their_order(tmp_path):
    """Each has its label by its place."""
    shades = (10, 60, 110, 160, 210, 250)
    buffer, offsets = strips(*shades)
    np.savez(tmp_path / "a.npz", train_webp=buffer, train_off=offsets)
    archive = Archive(tmp_path / "a.npz")
    assert archive.pictures("train_webp", 4)[:, 0, 0, 0].tolist() == list(shades)
    with pytest.raises(DataError, match=r"E401 .*a\.npz lacks the array 'y'; it holds train_webp, train_off"):
        archive.labels("y")
    np.savez(tmp_path / "a.npz", train_webp=buffer, train_off=offsets + 3)
    with pytest.raises(DataError, match=r"E401 .*a\.npz: 'train_webp' cannot be read as pictures"):
        Archive(tmp_path / "a.npz").pictures("train_webp", 4)
