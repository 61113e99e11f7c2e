"""What images say of themselves beside their pixels: palettes, transparency, how the camera was held, and who
else shows them.
"""

import numpy as np
import pytest
from PIL import Image

from unskew import data
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


@pytest.mark.parametrize("mode", ["P", "CMYK"])
def test_a_palette_is_read_as_its_colours(mode):
    plain, _ = samples(COLOURS)
    other, _ = samples([image.quantize(4) if mode == "P" else image.convert(mode) for image in COLOURS])
    assert other.shape == plain.shape
    assert np.abs(other - plain).max() < 0.02


def test_grey_images_among_coloured_ones_are_read_in_colour():
    mixed, _ = samples([image.convert("L") if i % 3 == 2 else image for i, image in enumerate(COLOURS)])
    assert mixed.shape == (20, 3, 8, 8)
    assert np.array_equal(mixed[1], samples(COLOURS)[0][1])
    assert np.array_equal(mixed[2, 0], mixed[2, 2])


def test_an_image_of_more_pixels_than_memory_is_meant_for_is_refused(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (9, 9)).save(tmp_path / name / "1.png")
    monkeypatch.setattr("unskew.data.kinds.images.MOST_PIXELS", 80)
    with pytest.raises(DataError, match=r"E401 .*1\.png has 9 x 9 pixels; at most 80 are decoded"):
        data.folder(tmp_path, size=8)
