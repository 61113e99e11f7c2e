"""Masks, as drawing programs and image files store them, as class numbers.

The set of values that occurs in all masks says how they are read:

0 to 19                          class numbers
two values, one of them above    the smaller is the background: 0 and 255, 0 and 65,535, 0 and 128
class numbers and 255            refused: 255 often marks pixels to be left out
others                           refused, unless the classes are named, such as the greys at edges of a JPEG,
                                 and masks of sites that mean the same by other numbers

Image files in colour:

greys                            their numbers, as they are stored
a palette that all masks share   its numbers, as VOC writes them
others                           refused: different colours may have equal greys, and colours have no order

Letters: N masks, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.files.archives import open_image
from unskew.data.kinds.images import Fit, ImageInfo, check_depth, fit_square, white_is_zero
from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.reading_notes import Note, abbreviate
from unskew.errors import DataError

UNNAMED_CLASSES = 20
"""Maximal number of classes of masks without names."""
ROW_NAMES: Sequence[Callable[[int], str]] = ("training sample {}".format, "test sample {}".format)


def as_masks(
    name: str,
    parts: list[np.ndarray],
    classes: tuple[str, ...] | None,
    notes: list[Note],
    row_names: Sequence[Callable[[int], str]] = ROW_NAMES,
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """(masks as uint8, or int64 above 256 classes; the names of the classes). parts: training and test masks.
    row_names: the name of a row of each part, for messages.

    Raises DataError (E404) for values that are not whole, and for more than 20 classes without names.
    """
    parts = [_whole_masks(name, y) for y in parts]
    top = max((int(y.max()) for y in parts if y.size), default=0)
    if top and (classes is None or len(classes) <= min(top, 2)):
        parts = _class_numbers(name, parts, row_names, notes)
    wide = any(y.size and (y.min() < 0 or y.max() > 255) for y in parts)
    parts = [y.astype(np.int64 if wide else np.uint8) for y in parts]
    count = max((int(y.max()) + 1 for y in parts if y.size), default=0)
    if classes is None:
        classes = ("background", "foreground") if count <= 2 else tuple(map(str, range(count)))
    return parts, classes


def _whole_masks(name: str, y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.round(y)).all():
        return y.astype(np.int64)
    if y.dtype.kind not in "biu":
        remedy = "they must be whole numbers from 0: threshold them, such as y > 0.5"
        raise DataError("E404", f"{name}: masks are {y.dtype} with fractions; {remedy}.")
    return y


def _class_numbers(
    name: str, parts: list[np.ndarray], row_names: Sequence[Callable[[int], str]], notes: list[Note]
) -> list[np.ndarray]:
    """The masks as class numbers, masks of two values as 0 and 1; adds to the notes."""
    values = np.unique(np.concatenate([np.unique(y) for y in parts if y.size]))
    low, high = int(values[0]), int(values[-1])
    if high < UNNAMED_CLASSES:
        return parts
    text = f"masks hold {_value_list(values)}"
    is_void = high == 255 and 0 < low < UNNAMED_CLASSES  # 1 and 255 may be a class and pixels without one
    if low < 0 or len(values) > 2 or is_void:
        hits = [(row_name, (y == high).any((1, 2))) for row_name, y in zip(row_names, parts)]
        example = next(row_name(int(hit.argmax())) for row_name, hit in hits if hit.any())
        remedy = "labels are class numbers, or two values, the same at all sites. Set pixels of 255 that mean"
        remedy += (
            " 'void' to a class, mask[mask == 255] = 0; save masks without loss (PNG, not JPEG; greys at"
        )
        remedy += (
            f" edges: mask > 127); above {UNNAMED_CLASSES} give classes. Or are images and masks swapped?"
        )
        raise DataError("E404", f"{name}: {text} ({example}); {remedy}")
    if (low, high) != (0, 255):
        notes.append(("labels", f"{text}, read as background and foreground"))
    return [(y == high).astype(np.uint8) for y in parts]


def _value_list(values: np.ndarray) -> str:
    """`0 and 255`, `0, 128 and 255`, `0, 1, 2, 3, 4 and 30 more`."""
    texts = list(map(str, values.tolist()))
    if len(texts) == 1 or len(texts) > 5:
        return abbreviate(texts, 5)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


REMEDY = "save all masks with the numbers of their classes, in grey (PNG)"


@dataclass(frozen=True)
class MaskFile:
    """The values of a mask file, [size, size], resized to the nearest pixel. palette: the colour of each
    number, {} for greys."""

    values: np.ndarray
    palette: Mapping[int, tuple[int, int, int]] = field(default_factory=dict[int, tuple[int, int, int]])


def read_mask(file: Path, size: int, fit: Fit, form: ImageInfo) -> MaskFile:
    """The values of a mask file. form: the format of its image.

    Raises DataError: E401 for a file that cannot be read, E404 for a mask of another ratio than its image or
    with other pages, and for one in colours without a palette.
    """
    from PIL import Image

    with damage_as_error(file, "an image", "save it again, as PNG"), open_image(file) as image:
        _check_fits(file, image, form)
        values, palette = _file_numbers(file, image)
        if image.mode == "L" and white_is_zero(image):  # Pillow has inverted these
            values = 255 - values
    plain = Image.fromarray(values.astype(np.float32 if values.dtype.kind == "f" else np.int32))
    small = np.asarray(fit_square(plain, size, fit, Image.Resampling.NEAREST))
    return MaskFile(small.astype(np.uint8) if values.dtype.itemsize == 1 else small, palette)


def check_palettes(masks: Sequence[MaskFile], files: Sequence[Path]) -> list[Note]:
    """A note on the colours of the numbers in palettes. Raises DataError (E404) for palettes that differ."""
    known: dict[int, tuple[tuple[int, int, int], Path]] = {}
    for mask, file in zip(masks, files):
        for number, colour in mask.palette.items():
            first, other = known.setdefault(number, (colour, file))
            if first != colour:
                text = f"number {number} is the colour {first} in {other} and {colour} in {file}"
                raise DataError("E404", f"{text}; {REMEDY}.")
    texts = ", ".join(f"{number} is {known[number][0]}" for number in sorted(known)[:4])
    return [("labels", f"masks have a palette, whose numbers were read: {texts}")] if texts else []


def _check_fits(file: Path, image: Any, form: ImageInfo) -> None:
    """Raises DataError (E404) for a mask that does not fit its image."""
    (width, height), frames = form.shape, getattr(image, "n_frames", 1)
    if abs(image.width * height - image.height * width) > max(*image.size, *form.shape):
        sizes = f"{image.width} x {image.height}, its image {width} x {height}"
        raise DataError("E404", f"{file} is {sizes}; they must fit.")
    if frames > 1 and frames != form.frames:
        remedy = "a mask is one page with the numbers of all classes"
        raise DataError("E404", f"{file} holds {frames} pages, and its image {form.frames}; {remedy}.")


def _file_numbers(file: Path, image: Any) -> tuple[np.ndarray, dict[int, tuple[int, int, int]]]:
    """(the numbers in a mask file [H, W], the colours of the numbers if it has a palette of colours)."""
    check_depth(image, str(file))
    if image.mode in ("1", "L", "F") or image.mode.startswith("I"):
        return np.asarray(image), {}
    rgba_HW4 = np.asarray(image.convert("RGBA"))
    if not np.ptp(rgba_HW4[..., :3], axis=2).any() and (rgba_HW4[..., 3] == 255).all():
        return np.asarray(image.convert("L")), {}
    if image.mode != "P":
        fault = "is in colours, or partly transparent, and nothing says which number a class has"
        raise DataError("E404", f"{file} {fault}; {REMEDY}. Or were images and masks swapped?")
    values = np.asarray(image)
    numbers, first = np.unique(values, return_index=True)
    red, green, blue = rgba_HW4.reshape(-1, 4)[first, :3].T.tolist()
    return values, dict(zip(numbers.tolist(), zip(red, green, blue)))
