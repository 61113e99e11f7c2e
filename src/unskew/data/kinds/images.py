"""Image files as samples: one size, any bit depth, values in [0, 1].

8 bits are divided by 255, and 16 bits of grey by 65,535 or by the largest value of the bits in use; floats
stay as they are. Colours of 16 bits are refused, because Pillow keeps only their upper bytes. An image that
is not square is scaled until its longer side fits and padded with black, and its mask with it.

Arrays of images are resized by the mean over the area of each new pixel, and masks by the nearest pixel.
Letters: N images, H height, W width, S the new side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from annotated_types import Ge, Gt, Le

from unskew.data.files.archives import open_image
from unskew.data.samples.conversion import array_of, damage_as_error
from unskew.data.samples.dataset import check_numbers
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError


def check_depth(image: Any, name: str) -> None:
    """Raises DataError (E401) for an image of Pillow's with colours of 16 bits, or with signed bytes, which
    Pillow reads as others. The image is not loaded yet."""
    modes = [str(args[0] if isinstance(args, tuple) and args else args) for *_, args in image.tile]
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(BITS, ())
    if 8 in bits and SIGNED in tags.get(SAMPLE_FORMAT, ()):
        remedy = "save it with 16 bits, or without a sign"
        raise DataError("E401", f"{name} holds signed bytes, of which -1 would become 255; {remedy}.")
    deep = 16 in bits or any(mode[-4:-1] == ";16" for mode in modes)
    if image.mode in ("RGB", "RGBA") and deep:
        remedy = "save it with 8 bits, or in grey"
        raise DataError("E401", f"{name} holds colours of 16 bits, of which 8 would be lost; {remedy}.")


BITS, SAMPLE_FORMAT, SIGNED = 258, 339, 2
"""TIFF's tags for the bits of each colour and for their meaning, and its value for whole numbers with a
sign."""


T = TypeVar("T")
Fit: TypeAlias = Literal["pad", "crop", "squash"]
SizeSetting = Annotated[int, Gt(0), Le(4096), "side to which images are resized, in pixels"]
FitSetting = Annotated[Fit, "images that are not square: padded with black, cut to the middle, or squashed"]
BitsSetting = Annotated[int, Ge(9), Le(16), "number of bits that image files of 16 bits use, such as 12"]
PHOTOMETRIC = 262
"""TIFF's tag for the meaning of numbers; 0: the largest is black."""
COLOUR_MODES = ("P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
"""Pillow's modes other than red, green and blue, and the modes as which they are read."""


@dataclass(frozen=True)
class ImageSettings:
    """The conversion of image files, with the arguments of `folder`. bits: the number of bits that files of
    16 bits use."""

    size: int
    fit: Fit
    bits: int


@dataclass(frozen=True)
class ImageInfo:
    """The format of an image file. shape: (width, height). depth: "8 bit", "16 bit" or "float"."""

    shape: tuple[int, int]
    depth: str
    frames: int = 1


MOST_PIXELS = 1 << 26
"""Beyond these an image takes a gigabyte while it is decoded."""


def decode_image(file: Path | IO[bytes], name: str, settings: ImageSettings) -> tuple[np.ndarray, ImageInfo]:
    """(an image file in colour, float32 [3, size, size]; its format). name: of the file, for the message.

    Raises DataError (E401) for a file that cannot be read.
    """
    from PIL import Image

    size, fit, bits = settings.size, settings.fit, settings.bits
    with damage_as_error(name, "an image", "save it again, as PNG"), open_image(file) as image:
        check_depth(image, name)
        if image.width * image.height > MOST_PIXELS:
            text = f"{name} has {image.width} x {image.height} pixels; at most {MOST_PIXELS:,} are decoded"
            raise DataError("E401", f"{text}; cut it into smaller images.")
        frames = getattr(image, "n_frames", 1)
        if image.mode.startswith("I") or image.mode == "F":
            values, depth = _deep_grey(image, name, bits)
            grey = fit_square(Image.fromarray(values), size, fit, Image.Resampling.BICUBIC)
            pixels = np.asarray(grey, dtype=np.float32)
            pixels = pixels if depth == "float" else pixels.clip(0, 1)
            return np.repeat(pixels[None], 3, axis=0), ImageInfo(image.size, depth, frames)
        shape = image.size
        # a palette with transparency: Pillow warns unless alpha is requested
        plain = image.convert("RGBA") if isinstance(image.info.get("transparency"), bytes) else image
        colours = np.asarray(fit_square(plain.convert("RGB"), size, fit, None)).transpose(2, 0, 1)
        return np.ascontiguousarray(colours.astype(np.float32) / np.float32(255)), ImageInfo(
            shape, "8 bit", frames
        )


def channels_first(x: Any) -> np.ndarray:
    """A sample as an array, channels first; an image of Pillow's keeps its size."""
    if not hasattr(x, "getbands"):
        return array_of(x)
    pixels = np.asarray(x.convert("RGB") if x.mode in COLOUR_MODES else x)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def read_each(files: Sequence[object], read: Callable[[int], T]) -> list[T]:
    """The results of `read` for each of these files, by number. Raises its DataError, with all files that
    cannot be read."""
    results: list[T] = []
    errors: list[tuple[object, DataError]] = []
    for i, file in enumerate(files):
        try:
            results.append(read(i))
        except DataError as error:
            if error.code != "E401":
                raise
            errors.append((file, error))
    if len(errors) == 1:
        raise errors[0][1]
    if errors:
        others = abbreviate([str(file) for file, _ in errors[1:]])
        count = f"{len(errors):,} of {len(files):,} files cannot be read; also {others}."
        raise DataError("E401", f"{errors[0][1].text} {count}")
    return results


def size_notes(forms: Sequence[ImageInfo], size: int, fit: Fit, bits: int) -> list[Note]:
    """Notes on the images' sizes, bit depths and further frames."""
    notes: list[Note] = []
    if others := [
        shape for shape, _ in Counter(f.shape for f in forms).most_common() if shape != (size, size)
    ]:
        also = f" and {quantity(len(others) - 1, 'other size')}" if others[1:] else ""
        text = (
            f"images of {others[0][0]} x {others[0][1]}{also} were resized to {size} x {size} (size={size})"
        )
        notes.append(("scaled", text))
    if n := sum(f.shape[0] != f.shape[1] for f in forms):
        treatment = {"pad": "padded with black", "crop": "cut to their middle", "squash": "squashed"}[fit]
        notes.append(("scaled", f"{quantity(n, 'image')} not square, {treatment} (fit={fit})"))
    how = {
        "8 bit": "divided by 255",
        "16 bit": f"divided by {(1 << bits) - 1:,}",
        "float": "taken as they are",
    }
    for depth, n in Counter(f.depth for f in forms).items():
        notes.append(("scaled", f"{quantity(n, 'image')} of {depth}, {how[depth]}"))
    if n := sum(f.frames > 1 for f in forms):
        notes.append(("left out", f"all frames but the first of {quantity(n, 'image')}"))
    return notes


def _deep_grey(image: Any, name: str, bits: int) -> tuple[np.ndarray, str]:
    """(values, "16 bit" or "float") of an image with more than 8 bits, float32 [H, W]."""
    values, largest = np.asarray(image), (1 << bits) - 1
    if image.mode == "F":
        check_numbers(values, name)
        return values.astype(np.float32), "float"
    if values.min() < 0 or values.max() > largest:
        remedy = f"bits={bits} allows {largest:,} at most; shift these values, or save them as floats (TIFF)"
        raise DataError("E401", f"{name} holds values from {values.min()} to {values.max()}; {remedy}.")
    if white_is_zero(image):  # Pillow regards this tag in images of 8 bits only
        values = largest - values.astype(np.int64)
    return values.astype(np.float32) / np.float32(largest), "16 bit"


def white_is_zero(image: Any) -> bool:
    """Whether an image is a TIFF in which 0 is white."""
    return getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0


def fit_square(image: Any, size: int, fit: Fit, resample: Any) -> Any:
    """The image as a square of this size. resample: Pillow's resampling filter, None for its default."""
    from PIL import Image

    width, height = image.size
    if width == height or fit == "squash":
        return image.resize((size, size), resample)
    if fit == "crop":
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        return image.crop((left, top, left + side, top + side)).resize((size, size), resample)
    longer = max(width, height)
    inner = (max(1, round(width * size / longer)), max(1, round(height * size / longer)))
    square = Image.new(image.mode, (size, size))
    square.paste(image.resize(inner, resample), ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return square


def resize_images(x: np.ndarray, size: int) -> np.ndarray:
    """Images [N, channels, H, W] as float32 [N, channels, size, size]; the mean of an image does not
    change."""
    if x.shape[2:] == (size, size):
        return x
    rows_SH, columns_SW = (area_weights(n, size) for n in x.shape[2:])
    return np.stack([rows_SH @ image @ columns_SW.T for image in x]).astype(np.float32)


def resize_masks(y: np.ndarray, size: int) -> np.ndarray:
    """Masks [N, H, W] as [N, size, size]; no new class appears."""
    rows, columns = (((np.arange(size) + 0.5) * n / size).astype(np.int64) for n in y.shape[1:])
    return np.ascontiguousarray(y[:, rows[:, None], columns])


def area_weights(n: int, size: int) -> np.ndarray:
    """The share of each of n old pixels in each new pixel, float32 [size, n]; rows sum to 1."""
    edges = np.linspace(0, n, size + 1)
    low, high = edges[:-1, None], edges[1:, None]
    pixels = np.arange(n)
    inside = np.minimum(high, pixels + 1) - np.maximum(low, pixels)
    return (np.clip(inside, 0, None) / (high - low)).astype(np.float32)
