"""Folders as people keep them: sites and domains, masks, tables beside files, parts, sizes, and what is left
out."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

import unskew
from unskew import data
from unskew.data.samples.dataset import Dataset
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
    if order == "site/class":
        rngs = np.random.default_rng(0), np.random.default_rng(1)
        federation = data.build(d, "column:site", 2, *rngs)
        assert (federation.names, federation.natural) == (names, True)
        assert [len(rows) for rows in federation.test] == [2, 2]  # of every class at every site


def test_images_keep_their_ratio_and_masks_follow(tmp_path):
    """D7: size and fit are settings; an image that is not square is padded unless asked otherwise, and
    told."""
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
    with pytest.raises(
        UsageError, match=r"E125 folder .*: fit must be 'pad' or 'crop' or 'squash'; got 'pda'"
    ):
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
        (("",), "holds its files directly in it"),
        (("a",), "holds 1 class folder;"),
        (("a", "b/inner"), "lie at different depths"),
        (("a/b/c/d",), "4 folders deep"),
    ],
)
def test_folders_that_name_no_classes_are_refused(tmp_path, ways, says):
    """D7: one sentence that says where files should lie."""
    pictures(tmp_path, *ways, n=2)
    with pytest.raises(DataError, match=f"E404 .*{says}"):
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
    assert "list.csv lists the files, by 'filename'; labels: from the column 'category'" in notes(d)
    assert "1 row in list.csv without a file" in notes(d)
    with pytest.raises(DataError, match=r"E403 .*list.csv has no column 'kategory'.*Did you mean 'category'"):
        data.read(tmp_path, label="kategory")


def disc(path, n=0, value=0, size=(16, 16)):
    """An image of noise with a bright square, or with a value its mask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    inside = np.zeros(size[::-1], np.uint8)
    inside[3 + n : 9 + n, 4:12] = 1
    noise = np.random.default_rng(n).integers(0, 100, inside.shape)
    Image.fromarray((inside * value if value else noise + 100 * inside).astype(np.uint8)).save(path)


def scans(
    root, image="{site}/images/{n}.png", mask="{site}/masks/{n}.png", sites=("berlin", "lyon"), value=255
):
    for site in sites:
        for n in range(5):
            disc(root / image.format(site=site, n=n), n)
            disc(root / mask.format(site=site, n=n), n, value)


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{site}/scans/{n}.png", "{site}/segs/{n}.png"),
        ("{site}/Images /{n}.png", "{site}/contours/{n}_seg.png"),
        ("{site}/imagesTr/{n}_0000.png", "{site}/labelsTr/{n}.png"),
        ("eu/{site}/images/{n}.png", "eu/{site}/masks/mask_{n}.png"),
        ("images/{site}/{n}.png", "annotations/{site}/{n}.png"),
        ("{site}/images/patient{n}/slice.png", "{site}/masks/patient{n}/slice.png"),
        ("{site}/images/\u00f6{n}.png", "{site}/masks/o\u0308{n}.png"),
    ],
)
def test_usual_spellings_of_images_and_masks_are_understood(tmp_path, image, mask):
    """Other names made a classification of images and masks, merged sites of one country, and gave every
    patient's slice the mask of the last."""
    scans(tmp_path, image, mask)
    d = data.folder(tmp_path, size=16)
    assert d.labels["site"] == ("berlin", "lyon")
    for x, y in ((d.x, d.y), (d.x_test, d.y_test)):
        assert np.array_equal(x[:, 0] * 255 >= 100, y == 1)


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{site}/{n}.png", "{site}/{n}_mask.png"),
        ("{site}/patient{n}/image.png", "{site}/patient{n}/mask.png"),
    ],
)
def test_masks_never_become_samples_of_a_classification(tmp_path, image, mask):
    """Masks beside images were trained on as images of a class."""
    scans(tmp_path, image, mask)
    with pytest.raises(
        DataError, match=r"E404 .* looks like the mask of .*; put images into images/ and their masks into"
    ):
        data.folder(tmp_path)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("lyon/images/1.jpg", "1.jpg and .*1.png would share one mask"),
        ("lyon/masks/1.jpg", "1.jpg and .*1.png are masks of one image"),
        ("lyon/labels/1.png", "labels/1.png and .*masks/1.png are masks of one image"),
        ("images/1.png", "lies in the folder of a site, .*images/1.png does not"),
    ],
)
def test_images_and_masks_that_are_there_twice_are_refused(tmp_path, extra, says):
    """Of two masks of a name, the last was taken; images beside sites made a site without a name."""
    scans(tmp_path)
    disc(tmp_path / extra, 1, 255)
    disc(tmp_path / extra.replace("images", "masks"), 1, 255)
    with pytest.raises(DataError, match=f"E404 .*{says}"):
        data.folder(tmp_path)


def test_identical_images_stay_on_one_side_of_the_split(tmp_path):
    """Copies of an image, also at another site, were in training and in the test set, and nobody was told."""
    scans(tmp_path, sites=("berlin",))
    for n in range(20):
        disc(tmp_path / "berlin" / "images" / f"more{n}.png", 5 + n)
        disc(tmp_path / "berlin" / "masks" / f"more{n}.png", 5 + n, 255)
    for n in range(25):
        name = f"{n}.png" if n < 5 else f"more{n - 5}.png"
        for kind in ("images", "masks"):
            (tmp_path / "lyon" / kind).mkdir(parents=True, exist_ok=True)
            (tmp_path / "lyon" / kind / name).write_bytes((tmp_path / "berlin" / kind / name).read_bytes())
    d = data.folder(tmp_path, size=16)
    assert len(d.y_test)
    assert not {x.tobytes() for x in d.x} & {x.tobytes() for x in d.x_test}
    assert "note: 25 samples of 50 identical to another; they are on one side of the test split" in notes(d)


def test_paths_may_have_brackets_and_arguments(tmp_path, monkeypatch):
    """`my scans (2026)/(size=8)` was no path, and a missing relative path did not say where it was looked
    for."""
    pictures(tmp_path / "my scans (2026)", "a", "b")
    d = data.read(f"{tmp_path / 'my scans (2026)'}/(size=8)")
    assert d.shape == (3, 8, 8)
    monkeypatch.chdir(tmp_path)
    assert data.read("my scans (2026)").shape == (3, 64, 64)
    with pytest.raises(DataError, match=f"E402 there is no your/scans in {tmp_path}, where this was started"):
        data.read("your/scans(size=8)")
    with pytest.raises(UsageError, match=f"E125 unknown data 'scans'.*; or a path, looked for in {tmp_path}"):
        data.read("scans")


def pairs_of(root, *names, kinds=("images", "masks")):
    """An image and its mask for each name `FOLDER/*/FILE`, the star standing for images/ or masks/."""
    for n, name in enumerate(names):
        for kind, value in zip(kinds, (0, 255)):
            disc(root / name.replace("*", kind), n, value)


def fits(d) -> bool:
    """Whether every mask is that of its image, as `disc` draws them."""
    return all(np.array_equal(x[:, 0] * 255 >= 100, y == 1) for x, y in ((d.x, d.y), (d.x_test, d.y_test)))


def test_the_innermost_folder_says_what_is_an_image(tmp_path):
    """A site may be called `scans`."""
    pairs_of(tmp_path, *(f"{site}/*/{n}.png" for site in ("scans", "lyon") for n in range(4)))
    d = data.folder(tmp_path, size=16)
    assert d.labels["site"] == ("lyon", "scans")
    assert fits(d)


def test_sites_of_one_name_in_two_countries_are_two(tmp_path):
    pairs_of(tmp_path, *(f"{site}/*/{n}.png" for site in ("eu/a", "us/a") for n in range(4)))
    assert data.folder(tmp_path, size=16).labels["site"] == ("eu/a", "us/a")


def test_inner_folders_are_classes_only_if_their_names_recur(tmp_path):
    """One name that two classes have in common is a site of both; below a single folder the inner ones are
    classes."""
    pictures(
        tmp_path / "class", *(f"{c}/{site}" for c, sites in (("a", "xyz"), ("b", "zwv")) for site in sites)
    )
    d = data.folder(tmp_path / "class", size=8)
    assert d.classes == ("a", "b")
    assert d.labels["site"] == ("v", "w", "x", "y", "z")
    pictures(tmp_path / "one", "lyon/a", "lyon/b")
    d = data.folder(tmp_path / "one", size=8)
    assert (d.classes, d.labels["site"]) == (("a", "b"), ("lyon",))


def test_a_class_without_samples_is_a_class(tmp_path):
    """Its folder is there, so its number is taken, as at sites that have such samples."""
    pictures(tmp_path, "a", "c")
    (tmp_path / "b").mkdir()
    d = data.folder(tmp_path, size=8)
    assert d.classes == ("a", "b", "c")
    assert sorted(set(d.y.tolist())) == [0, 2]


X, Y = np.random.default_rng(0).random((20, 3)).astype(np.float32), np.arange(20) % 2


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (
            {"x": X, "y": np.array(["a", None] * 10, dtype=object)},
            "it holds Python objects.*dtype=str",
        ),
        ({"x": X}, "holds x; it needs x and y, or x_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "x_test and y_test; give both"),
        ({"x": X, "y": Y, "y_test": Y}, "x_test and y_test; give both"),
        ({"x_train": X, "y_train": Y, "x": X}, "holds both x and x_train"),
        ({"x_train": X, "y_train": Y, "y": Y}, "or y and y_train"),
        ({"x": X, "y": Y, "site": np.array([1.0, np.nan] * 10)}, "column 'site' has no value for sample 1"),
    ],
)
def test_archives_that_lack_something_say_what(tmp_path, arrays, says):
    """D10: each in one sentence that says what to write."""
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"E40. .*{says}"):
        data.read(tmp_path / "a.npz")


def test_arrays_by_path_are_a_set(tmp_path):
    """D8: .npy files beside each other; the file of the samples stands for their folder."""
    for name, array in (("x_train", X), ("y_train", Y), ("x_test", X[:5]), ("y_test", Y[:5])):
        np.save(tmp_path / f"{name}.npy", array)
    for place in (tmp_path, tmp_path / "x_train.npy"):
        d = data.read(place)
        assert np.array_equal(d.x, X)
    assert unskew.run("fedavg", tmp_path, skew="iid", clients=2, rounds=1, epochs=1).scores()
    np.save(tmp_path / "samples.npy", X)
    with pytest.raises(DataError, match=r"E401 .*samples.npy holds an array without labels"):
        data.read(tmp_path / "samples.npy")


def test_words_of_columns_have_one_numbering_for_training_and_test():
    x, y = np.zeros((4, 2)), ["a", "b"] * 2
    given = {"site": ["oslo", "lyon", "lyon", "oslo"]}, {"site": ["porto", "lyon", "oslo", "porto"]}
    d = data.arrays(x, y, x, y, columns=given[0], test_columns=given[1])
    assert d.labels["site"] == ("lyon", "oslo", "porto")
    assert d.columns["site"].tolist() == [1, 0, 0, 1]
    assert d.test_columns["site"].tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize("name", ["0.png", "0.tif"])
def test_a_file_of_another_format_starts_no_program(tmp_path, monkeypatch, name):
    """Pillow knows a file by its first bytes, and gives PostScript to Ghostscript."""
    pictures(tmp_path, "a", "b")
    (tmp_path / "a" / name).write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    )
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("a program was started"))
    with pytest.raises(DataError, match="E401"):
        data.folder(tmp_path, size=8)
