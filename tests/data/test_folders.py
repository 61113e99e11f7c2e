"""Folders as people keep them: sites and domains, masks, tables beside files, parts, sizes, and what is left out."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

import unskew
from tests.cli.calling import call
from unskew import data
from unskew.data.dataset import Dataset
from unskew.errors import DataError, UsageError


def notes(d: Dataset) -> str:
    assert d.intake
    return "; ".join(f"{topic}: {text}" for topic, text in d.intake.notes)


def paint(path, grey=128, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).save(path)


def tone(path, hz=440):
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, 8000, (8000 * np.sin(np.arange(4000) * hz / 8000 * 6.28)).astype(np.int16))


def pictures(root, *ways, n=5):
    for way in ways:
        for i in range(n):
            paint(root / way / f"{i}.jpg", 20 * i)


SITES = {"berlin", "lyon"}


@pytest.mark.parametrize("order", ["site/class", "class/site", "site/train/class", "train/site/class"])
def test_folders_carry_sites(tmp_path, order):
    """D7: a level of sites (domains) becomes the column `site`, wherever train and test stand."""
    parts = ("train", "test") if "train" in order else ("",)
    for site, others in (("berlin", ("a", "b")), ("lyon", ("a", "b"))):
        for c in others:
            for part in parts:
                inner = f"{site}-{c}" if order == "class/site" else site
                names = {"site": inner, "class": c, "train": part}
                pictures(tmp_path, "/".join(names[n] for n in order.split("/")))
    d = data.folder(tmp_path, size=8)
    assert d.classes == ("a", "b")
    names = d.labels["site"]
    assert set(names) == (SITES if order != "class/site" else {f"{s}-{c}" for s in SITES for c in "ab"})
    assert len(d.y) == (20 if "train" in order else 16)
    assert len(d.y_test) == (20 if "train" in order else 4)
    federation = unskew.run("fedavg", tmp_path, skew="column:site", rounds=1, epochs=1).federation
    assert federation.names == names
    assert federation.natural
    if order == "site/class":
        assert [len(rows) for rows in federation.test] == [2, 2]  # of every class at every site


def test_labels_beside_images_are_masks_also_by_site(tmp_path):
    """D7: images/ + labels/ are images with masks, and each site may have its own."""
    for site in SITES:
        for i in range(5):
            paint(tmp_path / site / "images" / f"{i}.png")
            paint(tmp_path / site / "labels" / f"{i}_mask.png", 255 * (i % 2))
    d = data.folder(tmp_path, size=8)
    assert d.y.ndim == 3
    assert d.classes == ("background", "foreground")
    assert d.labels["site"] == ("berlin", "lyon")
    paint(tmp_path / "lyon" / "labels" / "0_mask.png", size=(8, 4))
    with pytest.raises(DataError, match=r"E409 .*0_mask.png is 8 x 4, its image 8 x 8"):
        data.folder(tmp_path, size=8)


def test_images_keep_their_ratio_and_masks_follow(tmp_path):
    """D7: size and fit are settings; an image that is not square is padded unless asked otherwise, and told."""
    wide = np.zeros((4, 8), np.uint8)
    wide[:, :4] = 255
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for i in range(3):
            Image.fromarray(wide).save(tmp_path / kind / f"{i}.png")
    d = data.read(f"{tmp_path}(size=8)")
    assert d.y[0].tolist() == [[0] * 8] * 2 + [[1] * 4 + [0] * 4] * 4 + [[0] * 8] * 2
    assert np.array_equal(d.x[0, 0] > 0.5, d.y[0] == 1)
    assert "3 images not square, padded with black (fit=pad)" in notes(d)
    assert "resized to 8 x 8 (size=8)" in notes(d)
    squashed, cut = (data.read(tmp_path, size=4, fit=fit) for fit in ("squash", "crop"))
    assert squashed.y[0].tolist() == [[1, 1, 0, 0]] * 4
    assert cut.y[0].tolist() == [[1, 1, 0, 0]] * 4
    with pytest.raises(UsageError, match=r"E125 folder .*: fit must be 'pad' or 'crop' or 'squash'; got 'pda'"):
        data.read(f"{tmp_path}(fit=pda)")


def test_litter_and_other_files_are_left_out_and_told(tmp_path):
    """D7: a Thumbs.db, hidden files and notes stop nothing; files for validation are named."""
    pictures(tmp_path, "train/a", "train/b", "test/a", "test/b", "val/a")
    for name in ("train/a/Thumbs.db", "train/b/.DS_Store", "train/b/notes.txt", "__MACOSX/a/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"?")
    d = data.folder(tmp_path, size=8)
    assert d.classes == ("a", "b")
    assert (len(d.y), len(d.y_test)) == (10, 10)
    for words in ("3 hidden or system files", "neither images nor sounds: 1 .txt", "5 files for validation"):
        assert words in notes(d)


@pytest.mark.parametrize(
    ("ways", "says"),
    [
        ((), "holds no images and no sounds"),
        (("",), "holds its files directly in it; put them into CLASS/"),
        (("a",), "holds 1 class folders"),
        (("a", "b/inner"), "lie at different depths"),
        (("a/b/c/d",), "4 folders deep"),
    ],
)
def test_folders_that_name_no_classes_are_refused(tmp_path, ways, says):
    """D7: one sentence that says where files should lie."""
    pictures(tmp_path, *ways, n=2)
    with pytest.raises(DataError, match=f"E409 .*{says}"):
        data.folder(tmp_path)


@pytest.mark.parametrize("kind", ["sounds", "images"])
def test_a_table_lists_files_with_labels_and_sites(tmp_path, kind):
    """D7: audio/ + meta/*.csv, and images listed alike, take labels, sites and parts from the table."""
    rows = ["filename,category,hospital,split"]
    for i in range(12):
        name = f"{i}.wav" if kind == "sounds" else f"{i}.png"
        (tone if kind == "sounds" else paint)(tmp_path / "files" / f"part{i % 2}" / name)
        rows.append(
            f"{name},{'dog' if i % 3 else 'rain'},{'east' if i < 6 else 'west'},{'test' if i % 4 == 3 else 'train'}"
        )
    rows.append("gone.wav,dog,east,train")
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "list.csv").write_text("\n".join(rows))
    d = data.folder(tmp_path, size=8)
    assert d.classes == ("dog", "rain")
    assert (len(d.y), len(d.y_test)) == (9, 3)
    assert d.labels["site"] == ("east", "west")
    assert np.bincount(np.concatenate([d.y, d.y_test])).tolist() == [8, 4]
    assert "from the column 'category' of list.csv" in notes(d)
    assert "1 row in list.csv without a file" in notes(d)
    with pytest.raises(DataError, match=r"E403 .*list.csv has no column 'kategory'.*Did you mean 'category'"):
        data.read(tmp_path, label="kategory")


def test_compressed_sounds_are_read_or_explained(tmp_path, monkeypatch):
    """D7: .ogg and .mp3 need soundfile; without it the message says how to convert them."""
    for c in "ab":
        for i in range(2):
            (tmp_path / c).mkdir(exist_ok=True)
            (tmp_path / c / f"{i}.ogg").write_bytes(b"OggS")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r"E401 .*0.ogg is compressed; .*pip install soundfile"):
        data.folder(tmp_path)


X, Y = np.random.default_rng(0).random((20, 3)).astype(np.float32), np.arange(20) % 2


def test_archives_as_people_save_them(tmp_path):
    """D10: a training part alone, words, and arrays that are no columns."""
    np.savez(tmp_path / "a.npz", x_train=X, y_train=np.array(["no", "yes"])[Y], extra=np.zeros(3))
    d = data.npz(tmp_path / "a.npz")
    assert (len(d.y), len(d.y_test), d.classes) == (16, 4, ("no", "yes"))
    assert "left out: arrays that are no columns: extra" in notes(d)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X, "y": np.array(["a", None] * 10, dtype=object)}, r"the array 'y' holds Python objects.*dtype=str"),
        ({"x": X}, "holds x; it needs x and y, or x_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "x_test and y_test belong together"),
        ({"x": X, "y": Y, "site": np.array([1.0, np.nan] * 10)}, "column 'site' has no value for sample 1"),
    ],
)
def test_archives_that_lack_something_say_what(tmp_path, arrays, says):
    """D10: each in one sentence that says what to write."""
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"E40. .*{says}"):
        data.read(tmp_path / "a.npz")


def test_samples_are_held_out_of_every_class_at_every_site():
    """D10: the test set has a fifth of each class of each site."""
    site = np.repeat(["a", "b"], 50)
    x, y = np.random.default_rng(0).random((100, 3)), np.tile([0, 1, 1, 1, 1], 20)
    d = data.arrays(x, y, columns={"site": site})
    held = np.stack([d.test_columns["site"], d.y_test])
    kinds, counts = np.unique(held, axis=1, return_counts=True)
    assert kinds.T.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert counts.tolist() == [2, 8, 2, 8]


def test_tables_are_read_by_path(tmp_path):
    """D10: a CSV is a table, with its labels, sites and words; other files are refused by their ending."""
    lines = [
        f"{i},{i * 100},{'f' if i % 3 else 'm'},{'sick' if i % 2 else 'well'},{'north' if i < 10 else 'south'}"
        for i in range(20)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["id,dose,sex,state,hospital", *lines]))
    d = data.read(f"{tmp_path / 't.csv'}(label=state, site=hospital)")
    assert d.classes == ("sick", "well")
    assert d.labels["hospital"] == ("north", "south")
    assert d.shape == (2,)
    result = unskew.run("fedavg", tmp_path / "t.csv", label="state", site="hospital", rounds=1, epochs=1)
    assert result.federation.names == ("north", "south")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(
        UsageError, match=r"E125 .*t\.xlsx.* is not read; data are a folder, or a file of \.npz, \.npy, \.csv"
    ):
        data.read(tmp_path / "t.xlsx")
    for text, says in (
        ("a,b\n1\n", "line 2 has 1 values"),
        ("a,a\n1,2\n", "two columns called 'a'"),
        ("a,b\n", "no rows"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(DataError, match=f"E401 .*{says}"):
            data.read(tmp_path / "bad.csv")


def test_arrays_by_path_stay_mapped_read_only(tmp_path):
    """D8: .npy files beside each other are opened read-only, so that no memory has to be promised for them."""
    for name, array in (("x_train", X), ("y_train", Y), ("x_test", X[:5]), ("y_test", Y[:5])):
        np.save(tmp_path / f"{name}.npy", array)
    for place in (tmp_path, tmp_path / "x_train.npy"):
        d = data.read(place)
        assert isinstance(d.x, np.memmap)
        assert not d.x.flags.writeable
    assert unskew.run("fedavg", tmp_path, skew="iid", clients=2, rounds=1, epochs=1).scores()
    np.save(tmp_path / "samples.npy", X)
    with pytest.raises(DataError, match=r"E401 .*samples.npy holds an array without labels"):
        data.read(tmp_path / "samples.npy")


def test_large_files_of_bytes_are_divided_where_rows_are_used(tmp_path, monkeypatch):
    """D8: a large mapped file of uint8 is not refused, copied or converted as a whole, and trains to the same bits."""
    x, y = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8)).astype(np.uint8), np.arange(40) % 2
    np.save(tmp_path / "x.npy", x)
    settings = {"skew": "iid", "clients": 2, "rounds": 2, "epochs": 1}
    whole = unskew.run("fedavg", (x, y, x[:10], y[:10]), **settings)
    for module in ("convert", "from_arrays", "intake.scale"):
        monkeypatch.setattr(f"unskew.data.{module}.LARGE", 100)
    d = data.arrays(tmp_path / "x.npy", y, x[:10], y[:10])
    assert isinstance(d.x, np.memmap)
    assert d.x.dtype == np.uint8
    mapped = unskew.run("fedavg", d, **settings)
    assert mapped.digest == whole.digest
    assert mapped.scores() == whole.scores()
    np.save(tmp_path / "x.npy", x.astype(np.int32))
    with pytest.raises(DataError, match=r"E403 .*save it as float32 or uint8, not int32"):
        data.arrays(tmp_path / "x.npy", y, x[:10], y[:10])


def test_data_check_prints_what_was_understood(tmp_path):
    """D7: `unskew data check` shows samples, values, classes, sites and what is done to them, and trains nothing."""
    pictures(tmp_path / "d", "berlin/a", "berlin/b", "lyon/a", "lyon/b")
    (tmp_path / "d" / "lyon" / "a" / "Thumbs.db").write_bytes(b"?")
    done = call("data", "check", f"{tmp_path / 'd'}(size=8)")
    assert done.code == 0, done.err
    for words in (
        "samples  16 for training, 4 for testing", "each     3 channels of 8 x 8", "values   0 to ", "classes  2: a 8, b 8",
        "sites    2: berlin 8, lyon 8; --skew column:site", "left out 1 hidden or system file",
    ):  # fmt: skip
        assert words in done.out
    facts = json.loads(call("data", "check", str(tmp_path / "d"), "--json").out)
    assert facts["samples"] == {"train": 16, "test": 4}
    refused = call("data", "check", str(tmp_path / "nothing"))
    assert (refused.code, refused.out) == (3, "")
    assert refused.err.startswith("E402 there is no /")
    assert "Traceback" not in refused.err
