"""Masks, as drawing programs and image files store them, as class numbers.

Sites draw with different programs, so the masks of each site are read by the set of values that occurs in
them:

0 to 19                          class numbers
two values, one of them above    the smaller is the background: 0 and 255, 0 and 65,535, 0 and 128
class numbers and 255            refused: 255 often marks pixels to be left out
others                           refused, unless the classes are named, such as the greys at edges of a JPEG

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
from typing import Any, Literal

import numpy as np

from unskew.data.kinds.images import Fit, ImageInfo, check_depth, fit_square, white_is_zero
from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.reading_notes import Note, abbreviate
from unskew.errors import DataError

UNNAMED_CLASSES = 20
"""Maximal number of classes of masks without names."""
WHITE_VALUES = (254, 255, 65_535)
"""Values that sites use alike for the foreground."""


@dataclass(frozen=True)
class MaskOrigin:
    """The origin of the masks of a part. sites: [N], or None. name_of: the name of a row, for messages."""

    sites: np.ndarray | None = None
    name_of: Callable[[int], str] = "sample {}".format


@dataclass(frozen=True)
class _SiteMasks:
    """The masks of one site. rows: their rows in every part. values: the values that occur, ascending.
    example: the name of a mask with the largest value."""

    site: str
    rows: list[np.ndarray]
    values: np.ndarray
    example: str

    @property
    def kind(self) -> Literal["numbers", "two values", "unclear"]:
        low, high = int(self.values[0]), int(self.values[-1])
        if high < UNNAMED_CLASSES:
            return "numbers"
        is_void = high == 255 and 0 < low < UNNAMED_CLASSES  # 1 and 255 may be a class and pixels without one
        return "two values" if low >= 0 and len(self.values) <= 2 and not is_void else "unclear"

    @property
    def foreground(self) -> tuple[int, int]:
        """(value of the background, of the foreground); all white values count as one."""
        highest = int(self.values[-1])
        background = int(self.values[0]) if len(self.values) == 2 else 0
        return background, 255 if highest in WHITE_VALUES else highest

    @property
    def rule(self) -> str:
        """How the values are read."""
        if self.kind == "numbers":
            return "hold class numbers, which were kept"
        return f"hold {_value_list(self.values)}, read as background and foreground"

    def __str__(self) -> str:
        """`masks of north hold 0 and 30 (sample 3)`."""
        of_site = f" of {self.site}" if self.site else ""
        return f"masks{of_site} hold {_value_list(self.values)} ({self.example})"


def as_masks(
    name: str,
    parts: list[np.ndarray],
    classes: tuple[str, ...] | None,
    notes: list[Note],
    origins: Sequence[MaskOrigin] = (),
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """(masks as uint8, or int64 above 256 classes; the names of the classes). parts: training and test masks.

    Raises DataError (E404) for values that are not whole, for more than 20 classes without names, and for
    sites with values that contradict each other.
    """
    parts = [_whole_masks(name, y) for y in parts]
    top = max((int(y.max()) for y in parts if y.size), default=0)
    if top and (classes is None or len(classes) <= min(top, 2)):
        parts = _class_numbers(name, parts, origins or [MaskOrigin()] * len(parts), notes)
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


def _masks_by_site(parts: Sequence[np.ndarray], origins: Sequence[MaskOrigin]) -> list[_SiteMasks]:
    """The masks by site, in the order of the sites' names; one group if no site is known."""
    sites = [
        np.full(len(y), "") if o.sites is None or len(o.sites) != len(y) else np.asarray(o.sites).astype(str)
        for y, o in zip(parts, origins)
    ]
    groups = list[_SiteMasks]()
    for site in np.unique(np.concatenate(sites)).tolist():
        rows = [np.flatnonzero(of_part == site) for of_part in sites]
        masks = [y if len(r) == len(y) else y[r] for y, r in zip(parts, rows)]
        if not any(m.size for m in masks):
            continue
        values = np.unique(np.concatenate([np.unique(m) for m in masks if m.size]))
        hits = [(m == values[-1]).any((1, 2)) for m in masks]
        names = [o.name_of(int(r[hit.argmax()])) for o, r, hit in zip(origins, rows, hits) if hit.any()]
        groups.append(_SiteMasks(site, rows, values, names[0]))
    return groups


def _class_numbers(
    name: str, parts: list[np.ndarray], origins: Sequence[MaskOrigin], notes: list[Note]
) -> list[np.ndarray]:
    """The masks as class numbers, converted by the rule of each site; adds to the notes."""
    groups = _masks_by_site(parts, origins)
    if unclear := next((group for group in groups if group.kind == "unclear"), None):
        remedy = (
            "labels are class numbers, or two values. Set pixels of 255 that mean 'void' to a class, such"
        )
        remedy += f" as mask[mask == 255] = 0; above {UNNAMED_CLASSES} give classes, or masks saved without"
        remedy += " loss (PNG, not JPEG; greys at edges: mask > 127). Or were images and masks swapped?"
        raise DataError("E404", f"{name}: {unclear}; {remedy}")
    values = [group for group in groups if group.kind == "two values"]
    numbers = [group for group in groups if group.kind == "numbers" and group.values[-1] > 1]
    other = next((g for g in values if numbers or g.foreground != values[0].foreground), None)
    if other:
        texts = " and ".join(map(str, [(numbers or values)[0], other]))
        remedy = "which of them mean the same is not to be seen. Save all masks with the numbers of classes"
        raise DataError("E404", f"{name}: {texts}; {remedy}.")
    sites: dict[str, list[str]] = {}
    for group in groups:
        if group.values[-1] > 0:
            sites.setdefault(group.rule, []).append(group.site)
    for rule, named in sites.items():
        if len(sites) > 1:
            notes.append(("labels", f"masks of {abbreviate(named, 5)} {rule}"))
        elif not rule.startswith(("hold class", "hold 0 and 255,")):
            notes.append(("labels", f"masks {rule}"))
    if not values:
        return parts
    numbered = [np.zeros(y.shape, np.uint8) for y in parts]
    for group in groups:
        for y, masks, rows in zip(numbered, parts, group.rows):
            y[rows] = masks[rows] if group.kind == "numbers" else masks[rows] == group.values[-1]
    return numbered


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

    with damage_as_error(file, "an image", "save it again, as PNG"), Image.open(file) as image:
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
