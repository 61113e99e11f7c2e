"""Image files that are masks: which number, or colour, stands for which class.

greys                              their numbers, as they are stored
a palette that all masks share     its numbers, where they are those of classes, as VOC writes them
two colours in all masks           the darker one, or what is transparent, is 0 and the other 1
others                             refused: different colours may have one grey, and no order

Letters: H x W pixels, C colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from unskew.data.intake.images import Fit, Form, fitted, unreadable, white_is_zero
from unskew.data.intake.notes import Note, counted, some
from unskew.data.intake.wide import colours_of_16_bits
from unskew.errors import DataError

Colour: TypeAlias = tuple[int, int, int, int]
"""Red, green, blue and how opaque; all 0 where nothing is to be seen."""
OUTSIDE = -1
"""The number of pixels around a mask in colour that is not square."""
FAINT, BRIGHT = 16, 128
"""How far red, green and blue of a grey may lie apart that was saved with loss, in an image with a pixel as bright as this."""
MOST_COLOURS = 256
"""Colours of a mask at most; photographs, and masks in colour that were saved with loss, have more."""
OPAQUE = 255
WHITISH = (True, 128_000, (0, 0, 0, 0))
"""Where a colour that is the only one counts as foreground, as `_brightness` has it."""
REMEDY = "save all masks with the numbers of their classes, in grey (PNG)"


@dataclass(frozen=True)
class Mask:
    """values: as they are stored, [size, size], each the nearest one. shape: (width, height) of the file.

    colours: for which colour each number stands, {} of greys; numbered: whether the file numbers its colours itself, in a palette.
    inverted: whether 0 is shown as white.
    """

    values: np.ndarray
    shape: tuple[int, int]
    colours: Mapping[int, Colour] = field(default_factory=dict[int, Colour])
    numbered: bool = False
    inverted: bool = False


def mask(file: Path, size: int, fit: Fit, form: Form) -> Mask:
    """The values of a mask file. form: what its image was.

    Raises DataError: E401 for a file that cannot be read, E409 for a mask of another ratio than its image or with other pages, E404
    for a photograph.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            _check_fits(file, image, form)
            original = image.size
            values, colours, numbered = _numbers(file, image)
            inverted = image.mode == "L" and white_is_zero(image)  # Pillow turned these round
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds of error for damaged files
        raise unreadable(file, error) from error
    values = 255 - values if inverted else values
    away = -OUTSIDE if colours else 0  # what lies around an image becomes 0
    whole = values.dtype.kind != "f"
    plain = Image.fromarray(values.astype(np.int32 if whole else np.float32) + away)
    small = np.asarray(fitted(plain, size, fit, Image.Resampling.NEAREST)) - away
    one_byte = values.dtype.itemsize == 1 and not colours
    return Mask(small.astype(np.uint8) if one_byte else small, original, colours, numbered, inverted)


def classes_in(masks: Sequence[Mask], files: Sequence[Path], name: str) -> tuple[list[np.ndarray], list[Note]]:
    """(the values of masks, those in colour as numbers of classes; what was made of colours). name: of the set, for messages.

    Raises DataError (E404) where colours do not say which class is which.
    """
    notes = list[Note]()
    if n := sum(m.inverted for m in masks):
        notes.append(("labels", f"the numbers of {counted(n, 'mask')} were read as stored, though 0 is shown as white"))
    coloured = [(m, file) for m, file in zip(masks, files) if m.colours]
    if not coloured:
        return [m.values for m in masks], notes
    shown = sorted({colour for m, _ in coloured for colour in m.colours.values()}, key=_brightness)
    differ, in_order = _differ(coloured), _in_order(coloured, shown)
    by_number = len(shown) > 2 or in_order or sum(shown[0][:3]) > 0  # black is nobody's foreground
    if not differ and all(m.numbered for m, _ in coloured) and by_number:
        if len(shown) > 2 or not in_order:
            first = ", ".join(f"{n} is {_told(colour)}" for n, colour in sorted(_numbers_of(coloured).items())[:4])
            notes.append(("labels", f"masks have a palette, whose numbers were read: {first}"))
        return [np.maximum(m.values, 0) if m.colours else m.values for m in masks], notes
    if len(shown) > 2:
        hold = f"hold {len(shown):,} colours, such as {some(list(map(_told, shown)), 4)}"
        why = differ or f"masks in colour {hold} ({coloured[0][1]}), and nothing says which number a class has"
        raise DataError("E404", f"{name}: {why}; {REMEDY}.")
    number = {colour: k if shown[1:] else int(_brightness(colour) >= WHITISH) for k, colour in enumerate(shown)}
    what = " and ".join(f"{_told(colour)} is {'foreground' if k else 'background'}" for colour, k in number.items())
    notes.append(("labels", f"{counted(len(coloured), 'mask')} in colour: {what}"))
    return [_by_colour(m, number) if m.colours else m.values for m in masks], notes


def _check_fits(file: Path, image: Any, form: Form) -> None:
    """Raises DataError (E409) for a mask that is none of this image."""
    (width, height), frames = form.shape, getattr(image, "n_frames", 1)
    if abs(image.width * height - image.height * width) > max(*image.size, *form.shape):
        text = f"{file} is {image.width} x {image.height}, its image {width} x {height}"
        raise DataError("E409", f"{text}; they must fit.")
    if frames > 1 and frames != form.frames:
        text = f"{file} holds {frames} pages, and its image {form.frames}"
        raise DataError("E409", f"{text}; a mask is one page with the numbers of all classes.")


def _numbers(file: Path, image: Any) -> tuple[np.ndarray, dict[int, Colour], bool]:
    """(the numbers in a mask file [H, W], for which colours they stand, whether the file numbers these itself)."""
    if (wide := colours_of_16_bits(file, image)) is not None:
        opaque = np.full((*wide.shape[:2], 1), OPAQUE, wide.dtype)
        return _numbered(np.concatenate([wide, opaque], axis=2), wide[..., 0], file)
    if image.mode in ("1", "L", "F") or image.mode.startswith("I"):
        return np.asarray(image), {}, False
    seen_HW4 = np.asarray(image.convert("RGBA"))
    if image.mode != "P":
        return _numbered(seen_HW4, np.asarray(image.convert("L")), file)
    values = np.asarray(image)
    numbers = np.flatnonzero(np.bincount(values.reshape(-1))).tolist()
    colours = {n: _colour(seen_HW4.reshape(-1, 4)[(values.reshape(-1) == n).argmax()]) for n in numbers}
    greys = all(colour == (n, n, n, OPAQUE) for n, colour in colours.items())
    return values, {} if greys else colours, not greys


def _numbered(seen_HW4: np.ndarray, grey_HW: np.ndarray, file: Path) -> tuple[np.ndarray, dict[int, Colour], bool]:
    """As `_numbers`, of colours: their greys where they are such, else numbers in no order. grey_HW: how bright each pixel is."""
    clear_HW = seen_HW4[..., 3] == 0
    seen_HW4 = np.where(clear_HW[..., None], 0, seen_HW4)
    spread = int((seen_HW4[..., :3].max(2) - seen_HW4[..., :3].min(2)).max())
    brightest, dark_HW = seen_HW4[..., :3].max(), (seen_HW4[..., :3].max(2) == 0) & ~clear_HW
    apart = (clear_HW | (seen_HW4[..., 3] == OPAQUE)).all() and not (clear_HW.any() and dark_HW.any())
    if apart and (not spread or (spread <= FAINT and brightest >= BRIGHT)):
        return np.where(clear_HW, 0, grey_HW).astype(grey_HW.dtype), {}, False
    packed = (seen_HW4.astype(np.uint64) << np.array([48, 32, 16, 0], np.uint64)).sum(2, dtype=np.uint64)
    colours_C, first, numbers = np.unique(packed, return_index=True, return_inverse=True)
    if len(colours_C) > MOST_COLOURS:
        text = (
            f"{file} holds {len(colours_C):,} colours, as photographs and masks in colour that were saved with loss do"
        )
        raise DataError("E404", f"{text}; {REMEDY}. Or were images and masks swapped?")
    colours = {n: _colour(seen) for n, seen in enumerate(seen_HW4.reshape(-1, 4)[first])}
    return numbers.reshape(packed.shape), colours, False


def _colour(seen: np.ndarray) -> Colour:
    red, green, blue, opaque = seen.tolist()
    return (red, green, blue, opaque) if opaque else (0, 0, 0, 0)


def _differ(coloured: Sequence[tuple[Mask, Path]]) -> str:
    """What to say where palettes of two files have another colour for one number; "" where none do."""
    stands: dict[int, tuple[Colour, Path]] = {}
    for m, file in coloured:
        for number, colour in m.colours.items() if m.numbered else ():
            first, at = stands.setdefault(number, (colour, file))
            if first != colour:
                return f"number {number} is {_told(first)} in the palette of {at} and {_told(colour)} in that of {file}"
    return ""


def _numbers_of(coloured: Sequence[tuple[Mask, Path]]) -> dict[int, Colour]:
    return {number: colour for m, _ in coloured for number, colour in m.colours.items()}


def _in_order(coloured: Sequence[tuple[Mask, Path]], shown: Sequence[Colour]) -> bool:
    """Whether the darker one of two colours has the lower number; of a single one, whether its number is 0."""
    numbers = sorted(_numbers_of(coloured), key=lambda number: shown.index(_numbers_of(coloured)[number]))
    return numbers == sorted(numbers) and len(numbers) == len(shown) and (len(shown) > 1 or numbers == [0])


def _by_colour(m: Mask, number: Mapping[Colour, int]) -> np.ndarray:
    """The mask with the number of each colour; what lies around it is background."""
    numbers_C = np.zeros(max(m.colours) + 1, np.uint8)
    for place, colour in m.colours.items():
        numbers_C[place] = number[colour]
    return np.where(m.values == OUTSIDE, 0, numbers_C[m.values]).astype(np.uint8)


def _brightness(colour: Colour) -> tuple[bool, int, Colour]:
    """What sorts colours from dark to bright, those that are not to be seen first."""
    red, green, blue, opaque = colour
    return opaque > 0, 299 * red + 587 * green + 114 * blue, colour


def _told(colour: Colour) -> str:
    red, green, blue, opaque = colour
    if not opaque:
        return "transparent"
    return {(0, 0, 0): "black", (255, 255, 255): "white"}.get((red, green, blue), f"({red}, {green}, {blue})")
