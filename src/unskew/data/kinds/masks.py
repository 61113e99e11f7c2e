"""Masks, as drawing programs and image files store them, as class numbers.

Sites draw with different programs, so the masks of each site are read by the set of values that occurs in
them:

0 to 19                          class numbers
two values, one of them above    the smaller is the background: 0 and 255, 0 and 65,535, 0 and 128
mostly near 0 and near 255       thresholded at 128: compression and smooth edges turn black and white grey
class numbers and 255            refused: 255 often marks pixels to be left out
others                           refused, unless the classes are named

Greys count as blurred edges unless a separate class shows in their histogram, as a hump that holds most of
them or fills areas. Image files in colour are read as follows:

greys                            their numbers, as they are stored
a palette that all masks share   its numbers, if they are those of classes, as VOC writes them
two colours in all masks         the darker one, or the transparent one, is 0 and the other 1
others                           refused: different colours may have equal greys, and colours have no order

Letters: N masks, H x W pixels, C colours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from unskew.data.kinds.images import Fit, ImageInfo, deep_colours, fit_square, image_error, white_is_zero
from unskew.data.samples.intake import Note, abbreviate, quantity
from unskew.errors import DataError

EDGE_GREYS = 32
"""The largest change of black and white by compression and smoothing; greys further inside are edges."""
BETWEEN_SHARE = 0.3
"""The largest share of pixels that may be such edges."""
CHANCE_SHARE = 0.001
"""A hump with a smaller share of the pixels is chance."""
LEAST_GREYS = 8
"""The smallest number of greys of blurred masks, unless all are nearly black or white."""
SMOOTHING_WIDTH = 17
"""Number of greys over which the histogram is smoothed; a hump is twice as wide."""


def are_black_and_white(masks: Sequence[np.ndarray]) -> bool:
    """Whether these masks, uint8 values [N, H, W] each, are black and white areas with blurred edges."""
    counts = _histogram(masks)
    between = counts[EDGE_GREYS : 256 - EDGE_GREYS].sum()
    if (
        not counts[:EDGE_GREYS].any()
        or not counts[256 - EDGE_GREYS :].any()
        or between > BETWEEN_SHARE * counts.sum()
    ):
        return False
    if between <= CHANCE_SHARE * counts.sum():
        return True
    share, place = _histogram_hump(counts)
    if (counts > 0).sum() < LEAST_GREYS or share > 0.5:
        return False
    areas = _histogram([mask[_inner_greys(mask)] for mask in masks])[
        place - SMOOTHING_WIDTH + 1 : place + SMOOTHING_WIDTH
    ]
    return share <= 0.25 or areas.sum() <= CHANCE_SHARE * counts.sum()


def _histogram(values: Sequence[np.ndarray]) -> np.ndarray:
    """The number of pixels of each value, [256]."""
    return sum((np.bincount(v.reshape(-1), minlength=256) for v in values), np.zeros(256, np.int64))


def _inner_greys(masks: np.ndarray) -> np.ndarray:
    """Pixels between black and white with eight neighbours of that kind, bool [N, H, W]."""
    grey = (masks >= EDGE_GREYS) & (masks < 256 - EDGE_GREYS)
    padded = np.pad(grey, ((0, 0), (1, 1), (1, 1)))
    height, width = masks.shape[1:]
    for i in range(3):
        for j in range(3):
            grey = grey & padded[:, i : i + height, j : j + width]
    return grey


def _histogram_hump(counts: np.ndarray) -> tuple[float, int]:
    """(the largest share of the greys in between that form a hump with valleys on both sides, the value at
    its top)."""
    smooth = np.convolve(counts, np.ones(SMOOTHING_WIDTH), mode="same")
    total, share, top = max(1, counts[EDGE_GREYS : 256 - EDGE_GREYS].sum()), 0.0, 128
    for place in range(EDGE_GREYS + SMOOTHING_WIDTH // 2, 256 - EDGE_GREYS - SMOOTHING_WIDTH // 2):
        valley = max(smooth[EDGE_GREYS : place + 1].min(), smooth[place : 256 - EDGE_GREYS].min())
        mass = float(counts[place - SMOOTHING_WIDTH + 1 : place + SMOOTHING_WIDTH].sum() / total)
        if smooth[place] > 3 * valley and mass > share:
            share, top = mass, place
    return share, top


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
    """The masks of one site. rows: rows of every part. values: the values that occur, ascending."""

    site: str
    masks: list[np.ndarray]
    rows: list[np.ndarray]
    values: np.ndarray

    @property
    def kind(self) -> Literal["numbers", "two values", "greys", "void", "unclear"]:
        values = self.values
        if not len(values) or values[-1] < UNNAMED_CLASSES:
            return "numbers"
        below = values[:-1]
        if values[-1] == 255 and len(below) and below[-1] < EDGE_GREYS and (len(below) > 1 or below[0] > 0):
            return "void"
        if values[0] >= 0 and len(values) <= 2:
            return "two values"
        if (
            values[0] >= 0
            and values[-1] < 256
            and are_black_and_white([m.astype(np.uint8) for m in self.masks])
        ):
            return "greys"
        return "unclear"

    @property
    def of_site(self) -> str:
        return f" of {self.site}" if self.site else ""

    def example(self, value: int, origins: Sequence[MaskOrigin]) -> str:
        """The first sample in which a value occurs."""
        for masks, rows, origin in zip(self.masks, self.rows, origins):
            hit = (masks == value).any((1, 2))
            if hit.any():
                return origin.name_of(int(rows[hit.argmax()]))
        return ""


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
    origins = origins or [MaskOrigin()] * len(parts)
    parts = [_whole_masks(name, y) for y in parts]
    top = max((int(y.max()) for y in parts if y.size), default=0)
    if top and not (classes is not None and (top < len(classes) or len(classes) > 2)):
        groups = _masks_by_site(parts, origins)
        kinds = [group.kind for group in groups]
        for group, kind in zip(groups, kinds):
            _check_site(name, group, kind, origins)
        _check_sites(name, groups, kinds, origins)
        notes += _value_notes(groups, kinds)
        parts = _class_numbers(parts, groups, kinds)
    parts = [_smallest_type(y) for y in parts]
    count = max((int(y.max()) + 1 for y in parts if y.size), default=0)
    if classes is None:
        classes = ("background", "foreground") if count <= 2 else tuple(map(str, range(count)))
    return parts, classes


def one_hot_masks(name: str, y: np.ndarray, notes: list[Note]) -> np.ndarray:
    """One-hot masks [N, C, H, W] as [N, H, W]. Raises DataError (E404) for others."""
    if not np.isin(y, (0, 1)).all() or not (y.sum(1) == 1).all():
        raise DataError(
            "E404",
            f"{name}: masks are {list(y.shape)}, but not one class per pixel; give masks [N, H, W] of class"
            " numbers.",
        )
    notes.append(("labels", f"one-hot masks of {y.shape[1]} channels were read as class numbers"))
    return y.argmax(1)


def _whole_masks(name: str, y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.round(y)).all():
        return y.astype(np.int64)
    if y.dtype.kind not in "biu":
        raise DataError(
            "E404",
            f"{name}: masks are {y.dtype} with fractions; they must be whole numbers from 0, [N], or masks"
            " [N, H, W] of them: threshold them, such as y > 0.5.",
        )
    return y


def _masks_by_site(parts: Sequence[np.ndarray], origins: Sequence[MaskOrigin]) -> list[_SiteMasks]:
    """The masks by site, in the order of the sites' names; one group if no site is known."""
    sites = [
        np.full(len(y), "") if o.sites is None or len(o.sites) != len(y) else np.asarray(o.sites).astype(str)
        for y, o in zip(parts, origins)
    ]
    groups = []
    for site in np.unique(np.concatenate(sites)).tolist():
        rows = [np.flatnonzero(of_part == site) for of_part in sites]
        masks = [y if len(r) == len(y) else y[r] for y, r in zip(parts, rows)]
        values = np.unique(np.concatenate([np.unique(m) for m in masks if m.size] or [np.zeros(0, np.int64)]))
        groups.append(_SiteMasks(site, masks, rows, values))
    return groups


def _check_site(name: str, group: _SiteMasks, kind: str, origins: Sequence[MaskOrigin]) -> None:
    """Raises DataError (E404) for a site with values that cannot be interpreted."""
    top = int(group.values[-1]) if len(group.values) else 0
    file = group.example(top, origins) if kind in ("void", "unclear") else ""
    if kind == "void":
        below = group.values[:-1]
        with_classes = [(m == top).any((1, 2)) & ((m > 0) & (m < top)).any((1, 2)) for m in group.masks]
        reason = (
            "255 is often 'void', pixels to be left out, but here every pixel is scored; set it to a class,"
            " such as mask[mask == 255] = 0"
            if any(flags.any() for flags in with_classes)
            else "no mask has both; save all of them with class numbers, such as mask // 255"
        )
        raise DataError(
            "E404",
            f"{name}: masks{group.of_site} hold class numbers ({abbreviate(list(map(str, below)), 5)}) and"
            f" 255 ({file}); {reason}.",
        )
    if kind == "unclear":
        values = group.values.tolist()
        how = (
            f": numpy.searchsorted({values}, mask)."
            if len(values) <= UNNAMED_CLASSES
            else ", saved without loss (PNG, not JPEG). Or were images and masks swapped?"
        )
        raise DataError(
            "E404",
            f"{name}: masks{group.of_site} hold values up to {top} ({_value_list(group.values)}; {file}),"
            f" which would make {top + 1:,} classes; above {UNNAMED_CLASSES} give classes, or masks whose"
            f" values are the numbers of the classes{how}",
        )


def _check_sites(
    name: str, groups: list[_SiteMasks], kinds: Sequence[str], origins: Sequence[MaskOrigin]
) -> None:
    """Raises DataError (E404) if the values of two sites cannot be matched."""
    unnumbered = [group for group, kind in zip(groups, kinds) if kind != "numbers"]
    numbers = [
        g for g, kind in zip(groups, kinds) if kind == "numbers" and len(g.values) and g.values[-1] > 1
    ]
    if not unnumbered:
        return
    first, others = unnumbered[0], (numbers or unnumbered)
    conflict = next((g for g in others if g in numbers or _two_values(g) != _two_values(first)), None)
    if conflict is not None:
        texts = [
            f"masks{g.of_site} hold {_value_list(g.values)} ({g.example(int(g.values[-1]), origins)})"
            for g in (conflict, first)
        ]
        raise DataError(
            "E404",
            f"{name}: {texts[0]}, {texts[1]}; which of these values mean the same is not to be seen. Save all"
            " masks with the numbers of their classes.",
        )


def _two_values(group: _SiteMasks) -> tuple[int, int]:
    """(value of the background, of the foreground) of a site with two values or greys; all white values
    count as one."""
    top = int(group.values[-1])
    low = int(group.values[0]) if len(group.values) == 2 else 0
    return low, 255 if top in WHITE_VALUES or len(group.values) > 2 else top


def _value_notes(groups: list[_SiteMasks], kinds: Sequence[str]) -> list[Note]:
    """Notes on the conversion of values that are no class numbers, by site if sites differ."""
    notes: list[Note] = []
    rules: dict[str, list[_SiteMasks]] = {}
    for group, kind in zip(groups, kinds):
        if kind == "greys":
            rules.setdefault("greys", []).append(group)
        elif len(group.values) and group.values[-1] > 0:
            rules.setdefault(_value_list(group.values) if kind == "two values" else "numbers", []).append(
                group
            )
    for rule, members in rules.items():
        sites = f" of {abbreviate([g.site for g in members], 5)}" if len(rules) > 1 else ""
        if rule == "greys":
            masks = [m for g in members for m in g.masks]
            share = 100 * sum(((m > 0) & (m < 255)).sum() for m in masks) / sum(m.size for m in masks)
            text = (
                f"were thresholded at 128: nearly black and white, but {share:.1f} % of the pixels are grey"
            )
            notes.append(("labels", f"masks{sites} {text}"))
        elif rule == "numbers" and len(rules) > 1:
            notes.append(("labels", f"masks{sites} hold class numbers, which were kept"))
        elif rule != "numbers" and (len(rules) > 1 or rule != "0 and 255"):
            notes.append(("labels", f"masks{sites} hold {rule}, read as background and foreground"))
    return notes


def _class_numbers(
    parts: list[np.ndarray], groups: list[_SiteMasks], kinds: Sequence[str]
) -> list[np.ndarray]:
    """The masks as class numbers, converted by the rule of each site."""
    if all(kind == "numbers" for kind in kinds):
        return parts
    numbered = [np.zeros(y.shape, np.uint8) for y in parts]
    for group, kind in zip(groups, kinds):
        border = UNNAMED_CLASSES if len(group.values) < 2 else int(group.values[-1])
        for y, masks, rows in zip(numbered, group.masks, group.rows):
            y[rows] = masks if kind == "numbers" else masks >= (128 if kind == "greys" else border)
    return numbered


def _value_list(values: np.ndarray) -> str:
    """A list of values as text: `0 and 255`, `0, 128 and 255`, `0, 1, 2, 3, 4 and 30 more`."""
    texts = list(map(str, values.tolist()))
    if len(texts) == 1 or len(texts) > 5:
        return abbreviate(texts, 5)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _smallest_type(y: np.ndarray) -> np.ndarray:
    """The array as uint8 if that holds every value, else as int64."""
    return y.astype(np.int64 if y.size and (y.min() < 0 or y.max() > 255) else np.uint8)


Colour: TypeAlias = tuple[int, int, int, int]
"""Red, green, blue and opacity; all 0 for a transparent pixel."""
PADDING = -1
"""The number of the pixels that pad a coloured mask to a square."""
GREY_TOLERANCE, GREY_BRIGHTNESS = 16, 128
"""Largest distance of red, green and blue in a grey that was compressed with loss, and the brightness that
some pixel must then have."""
MOST_COLOURS = 256
"""Maximal number of colours of a mask; photographs, and masks compressed with loss, have more."""
OPAQUE = 255
FOREGROUND_BRIGHTNESS = (True, 128_000, (0, 0, 0, 0))
"""The `_brightness` from which on a single colour counts as foreground."""
REMEDY = "save all masks with the numbers of their classes, in grey (PNG)"


@dataclass(frozen=True)
class MaskFile:
    """The values of a mask file, [size, size], resized to the nearest pixel. shape: (width, height) of the
    file.

    colours: the colour of each number, {} for greys. numbered: whether the file has a palette with numbers.
    inverted: whether 0 is shown as white.
    """

    values: np.ndarray
    shape: tuple[int, int]
    colours: Mapping[int, Colour] = field(default_factory=dict[int, Colour])
    numbered: bool = False
    inverted: bool = False


def read_mask(file: Path, size: int, fit: Fit, form: ImageInfo) -> MaskFile:
    """The values of a mask file. form: the format of its image.

    Raises DataError: E401 for a file that cannot be read, E404 for a mask of another ratio than its image or
    with other pages, E404 for a photograph.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            _check_fits(file, image, form)
            original = image.size
            values, colours, numbered = _file_numbers(file, image)
            inverted = image.mode == "L" and white_is_zero(image)  # Pillow has inverted these
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds of error for damaged files
        raise image_error(file, error) from error
    values = 255 - values if inverted else values
    shift = -PADDING if colours else 0  # the padding of an image becomes 0
    is_integer = values.dtype.kind != "f"
    plain = Image.fromarray(values.astype(np.int32 if is_integer else np.float32) + shift)
    small = np.asarray(fit_square(plain, size, fit, Image.Resampling.NEAREST)) - shift
    one_byte = values.dtype.itemsize == 1 and not colours
    return MaskFile(small.astype(np.uint8) if one_byte else small, original, colours, numbered, inverted)


def mask_classes(
    masks: Sequence[MaskFile], files: Sequence[Path], name: str
) -> tuple[list[np.ndarray], list[Note]]:
    """(the values of masks, colours as class numbers; notes on colours). name: name of the set, for messages.

    Raises DataError (E404) if the colours do not identify the classes.
    """
    notes = list[Note]()
    if n := sum(m.inverted for m in masks):
        notes.append(
            (
                "labels",
                f"the numbers of {quantity(n, 'mask')} were read as stored, though 0 is shown as white",
            )
        )
    coloured = [(m, file) for m, file in zip(masks, files) if m.colours]
    if not coloured:
        return [m.values for m in masks], notes
    colours = sorted({colour for m, _ in coloured for colour in m.colours.values()}, key=_brightness)
    difference, in_order = _palette_difference(coloured), _is_ascending(coloured, colours)
    by_number = len(colours) > 2 or in_order or sum(colours[0][:3]) > 0  # black is never the foreground
    if not difference and all(m.numbered for m, _ in coloured) and by_number:
        if len(colours) > 2 or not in_order:
            first = ", ".join(
                f"{n} is {_colour_name(colour)}"
                for n, colour in sorted(_palette_numbers(coloured).items())[:4]
            )
            notes.append(("labels", f"masks have a palette, whose numbers were read: {first}"))
        return [np.maximum(m.values, 0) if m.colours else m.values for m in masks], notes
    if len(colours) > 2:
        hold = f"hold {len(colours):,} colours, such as {abbreviate(list(map(_colour_name, colours)), 4)}"
        reason = (
            difference
            or f"masks in colour {hold} ({coloured[0][1]}), and nothing says which number a class has"
        )
        raise DataError("E404", f"{name}: {reason}; {REMEDY}.")
    number = {
        colour: k if colours[1:] else int(_brightness(colour) >= FOREGROUND_BRIGHTNESS)
        for k, colour in enumerate(colours)
    }
    text = " and ".join(
        f"{_colour_name(colour)} is {'foreground' if k else 'background'}" for colour, k in number.items()
    )
    notes.append(("labels", f"{quantity(len(coloured), 'mask')} in colour: {text}"))
    return [_recolour(m, number) if m.colours else m.values for m in masks], notes


def _check_fits(file: Path, image: Any, form: ImageInfo) -> None:
    """Raises DataError (E404) for a mask that does not fit its image."""
    (width, height), frames = form.shape, getattr(image, "n_frames", 1)
    if abs(image.width * height - image.height * width) > max(*image.size, *form.shape):
        text = f"{file} is {image.width} x {image.height}, its image {width} x {height}"
        raise DataError("E404", f"{text}; they must fit.")
    if frames > 1 and frames != form.frames:
        text = f"{file} holds {frames} pages, and its image {form.frames}"
        raise DataError("E404", f"{text}; a mask is one page with the numbers of all classes.")


def _file_numbers(file: Path, image: Any) -> tuple[np.ndarray, dict[int, Colour], bool]:
    """(the numbers in a mask file [H, W], the colours of the numbers, whether the file has a palette)."""
    if (wide := deep_colours(file, image)) is not None:
        opaque = np.full((*wide.shape[:2], 1), OPAQUE, wide.dtype)
        return _colour_numbers(np.concatenate([wide, opaque], axis=2), wide[..., 0], file)
    if image.mode in ("1", "L", "F") or image.mode.startswith("I"):
        return np.asarray(image), {}, False
    seen_HW4 = np.asarray(image.convert("RGBA"))
    if image.mode != "P":
        return _colour_numbers(seen_HW4, np.asarray(image.convert("L")), file)
    values = np.asarray(image)
    numbers = np.flatnonzero(np.bincount(values.reshape(-1))).tolist()
    colours = {n: _colour_of(seen_HW4.reshape(-1, 4)[(values.reshape(-1) == n).argmax()]) for n in numbers}
    greys = all(colour == (n, n, n, OPAQUE) for n, colour in colours.items())
    return values, {} if greys else colours, not greys


def _colour_numbers(
    rgba_HW4: np.ndarray, grey_HW: np.ndarray, file: Path
) -> tuple[np.ndarray, dict[int, Colour], bool]:
    """`_file_numbers` for a file of colours: greys if they are grey, else numbers in no order. grey_HW:
    each pixel's brightness."""
    clear_HW = rgba_HW4[..., 3] == 0
    rgba_HW4 = np.where(clear_HW[..., None], 0, rgba_HW4)
    spread = int((rgba_HW4[..., :3].max(2) - rgba_HW4[..., :3].min(2)).max())
    brightest, dark_HW = rgba_HW4[..., :3].max(), (rgba_HW4[..., :3].max(2) == 0) & ~clear_HW
    apart = (clear_HW | (rgba_HW4[..., 3] == OPAQUE)).all() and not (clear_HW.any() and dark_HW.any())
    if apart and (not spread or (spread <= GREY_TOLERANCE and brightest >= GREY_BRIGHTNESS)):
        return np.where(clear_HW, 0, grey_HW).astype(grey_HW.dtype), {}, False
    codes = (rgba_HW4.astype(np.uint64) << np.array([48, 32, 16, 0], np.uint64)).sum(2, dtype=np.uint64)
    colours_C, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    if len(colours_C) > MOST_COLOURS:
        text = (
            f"{file} holds {len(colours_C):,} colours, as photographs and masks in colour that were saved"
            " with loss do"
        )
        raise DataError("E404", f"{text}; {REMEDY}. Or were images and masks swapped?")
    colours = {n: _colour_of(pixel) for n, pixel in enumerate(rgba_HW4.reshape(-1, 4)[first])}
    return numbers.reshape(codes.shape), colours, False


def _colour_of(pixel: np.ndarray) -> Colour:
    red, green, blue, opaque = pixel.tolist()
    return (red, green, blue, opaque) if opaque else (0, 0, 0, 0)


def _palette_difference(coloured: Sequence[tuple[MaskFile, Path]]) -> str:
    """A description of two files' palettes with different colours for one number; "" if there are none."""
    first_uses: dict[int, tuple[Colour, Path]] = {}
    for m, file in coloured:
        for number, colour in m.colours.items() if m.numbered else ():
            first, first_file = first_uses.setdefault(number, (colour, file))
            if first != colour:
                return (
                    f"number {number} is {_colour_name(first)} in the palette of {first_file} and"
                    f" {_colour_name(colour)} in that of {file}"
                )
    return ""


def _palette_numbers(coloured: Sequence[tuple[MaskFile, Path]]) -> dict[int, Colour]:
    return {number: colour for m, _ in coloured for number, colour in m.colours.items()}


def _is_ascending(coloured: Sequence[tuple[MaskFile, Path]], colours: Sequence[Colour]) -> bool:
    """Whether the darker of two colours has the lower number; for a single colour, whether its number is
    0."""
    numbers = sorted(
        _palette_numbers(coloured), key=lambda number: colours.index(_palette_numbers(coloured)[number])
    )
    return (
        numbers == sorted(numbers) and len(numbers) == len(colours) and (len(colours) > 1 or numbers == [0])
    )


def _recolour(m: MaskFile, number: Mapping[Colour, int]) -> np.ndarray:
    """The mask with a class number for each colour; the padding is background."""
    numbers_C = np.zeros(max(m.colours) + 1, np.uint8)
    for place, colour in m.colours.items():
        numbers_C[place] = number[colour]
    return np.where(m.values == PADDING, 0, numbers_C[m.values]).astype(np.uint8)


def _brightness(colour: Colour) -> tuple[bool, int, Colour]:
    """A key that sorts colours from dark to bright, transparent ones first."""
    red, green, blue, opaque = colour
    return opaque > 0, 299 * red + 587 * green + 114 * blue, colour


def _colour_name(colour: Colour) -> str:
    red, green, blue, opaque = colour
    if not opaque:
        return "transparent"
    return {(0, 0, 0): "black", (255, 255, 255): "white"}.get((red, green, blue), f"({red}, {green}, {blue})")
