"""What recipes make of original files, row by row, and what they refuse: tiny files whose samples are known
by heart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.test_downloads import TEN, a_har, a_wav, folder, leaf, png
from unskew.data.downloads.named_archives import recipes
from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples
from unskew.data.downloads.recipes import domains
from unskew.errors import DataError


def made(name, path, size=64) -> OriginalSamples:
    return recipes()[name].read(OriginalFiles(path, name, size))


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


def test_every_image_keeps_its_domain_class_and_part(tmp_path, monkeypatch):
    ways = ("b/train/mug", "a/train/mug", "a/test/cup", "b/train/cup", "b/test/mug", "a/train/cup")
    origin = folder(tmp_path / "d", {f"{way}/1.png": png(10 + 40 * i) for i, way in enumerate(ways)})
    samples = made("pacs", origin, size=4)
    assert samples.classes == ("cup", "mug")
    for part, x, y, domain in (
        ("train", samples.x, samples.y, samples.columns["domain"][0]),
        ("test", samples.x_test, samples.y_test, samples.columns["domain"][1]),
    ):
        assert x is not None
        assert y is not None
        assert domain is not None
        seen = {f"{d}/{part}/{samples.classes[c]}": int(image[0, 0, 0]) for image, c, d in zip(x, y, domain)}
        assert seen == {way: 10 + 40 * i for i, way in enumerate(ways) if f"/{part}/" in way}
    monkeypatch.setattr(domains, "LARGEST_SET", 3 * 4 * 4 * 6 - 1)
    with pytest.raises(DataError, match=r"E401 6 images of 4 x 4 take 288 bytes, .*take a smaller --size"):
        made("pacs", origin, size=4)


ROWS = ("4.wav,40,10,1,car", "1.wav,10,1,0,dog", "2.wav,20,10,0,dog", "3.wav,30,2,1,car")


def sounds(root, *rows):
    table = "slice_file_name,fsID,fold,classID,class\n" + "".join(f"{row}\n" for row in rows)
    contents = {"metadata/UrbanSound8K.csv": table.encode(), "outside.wav": a_wav()}
    for row in rows:
        name, _, fold, *_ = row.split(",")
        contents[f"audio/fold{fold}/{name.replace('../', '')}"] = a_wav()
    return folder(root, contents)


def test_every_sound_keeps_its_fold_recording_and_class(tmp_path):
    samples = made("urbansound8k", sounds(tmp_path / "U", *ROWS))
    fold, recording = samples.columns["fold"], samples.columns["recording"]
    assert (fold[0].tolist(), recording[0].tolist(), samples.y.tolist()) == ([1, 2], [10, 30], [0, 1])
    assert samples.y_test is not None
    assert fold[1] is not None
    assert recording[1] is not None
    assert (fold[1].tolist(), recording[1].tolist(), samples.y_test.tolist()) == ([10, 10], [40, 20], [1, 0])
    assert samples.classes == ("dog", "car")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((*ROWS, "../../outside.wav,1,1,0,dog"), "names no files, or files elsewhere"),
        ((*ROWS, "5.wav,1,1,3,cat"), "the numbers of the classes are not 0 to 2"),
        ((*ROWS, "5.wav,x,1,0,dog"), "is not the table of UrbanSound8K"),
        ((), "names no files"),
    ],
)
def test_tables_of_sounds_that_name_other_files_or_lack_classes_are_refused(rows, says, tmp_path):
    with pytest.raises(DataError, match=rf"E401 .*{says}"):
        made("urbansound8k", sounds(tmp_path / "U", *rows))


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


def test_the_last_fifth_of_a_roles_text_is_its_test_part(tmp_path):
    text = "".join(chr(ord("a") + i * i % 23) for i in range(501))
    (tmp_path / "input.txt").write_text(f"KING:\n{text}\n")
    samples = made("shakespeare", tmp_path / "input.txt")

    def words(codes):
        return "".join(samples.classes[c] for c in codes)

    assert samples.x_test is not None
    assert samples.y_test is not None
    assert [words(x) for x in samples.x] == [text[i : i + 80] for i in (0, 80, 160, 240, 320)]
    assert words(samples.y) == "".join(text[i] for i in (80, 160, 240, 320, 400))
    assert [words(x) for x in samples.x_test] == [text[402:482]]
    assert words(samples.y_test) == text[482]


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
