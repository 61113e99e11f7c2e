"""What images say of themselves beside their pixels: palettes, transparency, how the camera was held, and who
else shows them.

Likely mistakes: indices into a palette taken for greys, photographs from a telephone that lie on their side,
the same image in two class folders.
"""

import io
import os

import numpy as np
import pytest
from PIL import Image

from unskew import data
from unskew.data.kinds.images import decode_image, size_notes
from unskew.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8)
COLOURS = [Image.fromarray(np.repeat(np.repeat(p[:2, :2], 4, 0), 4, 1)) for p in PIXELS]


class Images:
    """A Dataset of images as Pillow has them."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], i % 2


def samples(images):
    dataset = data.take({"train": Images(images), "test": Images(images[:2])})
    return dataset.x, " ".join(text for _, text in dataset.intake.notes)


def saved(image, form="PNG", **more):
    buffer = io.BytesIO()
    image.save(buffer, form, **more)
    return io.BytesIO(buffer.getvalue())


def seen(image, form="PNG", **more):
    _, what = decode_image(saved(image, form, **more), "it", 8, "pad", 16)
    return what


def notes(*forms):
    return [text for topic, text in size_notes(forms, 8, "pad", 16) if topic == "note"]


@pytest.mark.parametrize("mode", ["P", "CMYK"])
def test_a_palette_is_read_as_its_colours(mode):
    plain, _ = samples(COLOURS)
    other, _ = samples([image.quantize(4) if mode == "P" else image.convert(mode) for image in COLOURS])
    assert other.shape == plain.shape
    assert np.abs(other - plain).max() < 0.02


def test_images_of_one_size_keep_it_whatever_their_modes():
    mixed, told = samples([image if i % 3 else image.convert("L") for i, image in enumerate(COLOURS)])
    assert mixed.shape == (20, 3, 8, 8)
    assert np.array_equal(mixed[1], samples(COLOURS)[0][1])
    assert np.array_equal(mixed[0, 0], mixed[0, 2])
    assert "images of several modes (L, RGB) were read in colour" in told


def test_images_that_should_be_turned_are_told():
    turned = Image.Exif()
    turned[0x0112] = 6
    upright = Image.Exif()
    upright[0x0112] = 1
    forms = [seen(COLOURS[0], "JPEG", exif=turned), seen(COLOURS[0], "JPEG", exif=upright), seen(COLOURS[0])]
    assert [form.turned for form in forms] == [True, False, False]
    assert "1 image taken as stored, though EXIF says to turn or mirror them" in notes(*forms)[0]
    assert not notes(*forms[1:])


def test_transparent_parts_are_told():
    alpha = COLOURS[0].convert("RGBA")
    hole = alpha.copy()
    hole.putpixel((3, 3), (9, 9, 9, 0))
    palette = COLOURS[1].quantize(4)
    forms = [
        seen(hole),
        seen(alpha),
        seen(palette),
        seen(palette, transparency=0),
        seen(COLOURS[0].convert("LA")),
    ]
    assert [form.clear for form in forms] == [True, False, False, True, False]
    assert notes(*forms) == ["2 images with transparent parts, whose hidden colours are used"]


def test_an_image_in_two_classes_is_told(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i, image in enumerate(COLOURS[:10] if name == "cat" else COLOURS[10:]):
            image.save(tmp_path / name / f"{i}.png")
    assert "another class" not in str(data.read(str(tmp_path)).intake.notes)
    (tmp_path / "dog" / "link.png").symlink_to(tmp_path / "cat" / "3.png")
    (tmp_path / "dog" / "again.png").symlink_to(tmp_path / "dog" / "3.png")
    assert ("note", "1 sample identical to one of another class: which of both is right?") in data.read(
        str(tmp_path)
    ).intake.notes


def test_a_file_that_announces_more_than_there_is_memory_for(tmp_path):
    import zipfile

    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 8, 8), }"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n")
    with pytest.raises(
        DataError, match=r"E401 .*a.npz announces more than memory holds: .* Save large arrays"
    ):
        data.read(str(tmp_path / "a.npz"))


def test_parquet_without_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(
        {
            "x": pyarrow.array([], pyarrow.list_(pyarrow.float32())),
            "label": pyarrow.array([], pyarrow.int64()),
        }
    )
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"E403 a.parquet has no rows"):
        data.read(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("ending", ["png", "wav"])
def test_what_is_no_file_is_not_waited_for(tmp_path, ending):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "cat" / f"pipe.{ending}")
    (tmp_path / "dog" / f"link.{ending}").symlink_to(tmp_path / "nothing")
    with pytest.raises(DataError, match=rf"E401 .*pipe.{ending} is no file, or a link to none"):
        data.read(str(tmp_path))
