"""Masks in the forms that drawing programs and image files leave them in, as class numbers.

Sites draw with different programs, so the masks of each site are read by their own set of values:

0 to 19                          class numbers
two values, one of them above    the smaller is the background: 0 and 255, 0 and 65,535, 0 and 128
mostly near 0 and near 255       thresholded at 128: compression and smooth edges turn black and white into greys
class numbers and 255            refused: 255 often marks pixels to be left out
others                           refused, unless the classes are named
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unskew.data.intake.greys import NEAR, are_black_and_white
from unskew.data.intake.notes import Note, some
from unskew.errors import DataError

MOST_CLASSES = 20
"""Classes of masks at most, unless they are named."""
WHITE = (254, 255, 65_535)
"""Values that mean the same, foreground, where sites differ."""


@dataclass(frozen=True)
class Origin:
    """Where the masks of a part are from. sites: [N], or None. name_of: of a row, for messages."""

    sites: np.ndarray | None = None
    name_of: Callable[[int], str] = "sample {}".format


@dataclass(frozen=True)
class _Group:
    """The masks of one site. rows: of every part; values: those that occur, ascending."""

    site: str
    masks: list[np.ndarray]
    rows: list[np.ndarray]
    values: np.ndarray

    @property
    def kind(self) -> Literal["numbers", "two values", "greys", "void", "unclear"]:
        values = self.values
        if not len(values) or values[-1] < MOST_CLASSES:
            return "numbers"
        below = values[:-1]
        if values[-1] == 255 and len(below) and below[-1] < NEAR and (len(below) > 1 or below[0] > 0):
            return "void"
        if values[0] >= 0 and len(values) <= 2:
            return "two values"
        if values[0] >= 0 and values[-1] < 256 and are_black_and_white([m.astype(np.uint8) for m in self.masks]):
            return "greys"
        return "unclear"

    @property
    def of_site(self) -> str:
        return f" of {self.site}" if self.site else ""

    def example(self, value: int, origins: Sequence[Origin]) -> str:
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
    origins: Sequence[Origin] = (),
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """(masks as uint8, or int64 above 256 classes; the names of the classes). parts: of training and test samples.

    Raises DataError (E404) for values that are not whole, for more than 20 classes that nobody has named, and for sites
    whose values contradict each other.
    """
    origins = origins or [Origin()] * len(parts)
    parts = [_whole(name, y) for y in parts]
    top = max((int(y.max()) for y in parts if y.size), default=0)
    if top and not (classes is not None and (top < len(classes) or len(classes) > 2)):
        groups = _groups(parts, origins)
        kinds = [group.kind for group in groups]
        for group, kind in zip(groups, kinds):
            _check(name, group, kind, origins)
        _check_together(name, groups, kinds, origins)
        notes += _told(groups, kinds)
        parts = _numbered(parts, groups, kinds)
    parts = [_smallest(y) for y in parts]
    count = max((int(y.max()) + 1 for y in parts if y.size), default=0)
    if classes is None:
        classes = ("background", "foreground") if count <= 2 else tuple(map(str, range(count)))
    return parts, classes


def one_hot_masks(name: str, y: np.ndarray, notes: list[Note]) -> np.ndarray:
    """Masks [N, C, H, W] with a single one per pixel, as [N, H, W]. Raises DataError (E404) for others."""
    if not np.isin(y, (0, 1)).all() or not (y.sum(1) == 1).all():
        raise DataError(
            "E404",
            f"{name}: masks are {list(y.shape)}, but not one class per pixel; give masks [N, H, W] of class numbers.",
        )
    notes.append(("labels", f"one-hot masks of {y.shape[1]} channels were read as class numbers"))
    return y.argmax(1)


def _whole(name: str, y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.round(y)).all():
        return y.astype(np.int64)
    if y.dtype.kind not in "biu":
        raise DataError(
            "E404",
            f"{name}: masks are {y.dtype} with fractions; they must be whole numbers from 0, [N], or masks [N, H, W] of "
            "them: threshold them, such as y > 0.5.",
        )
    return y


def _groups(parts: Sequence[np.ndarray], origins: Sequence[Origin]) -> list[_Group]:
    """The masks by site, in the order of the sites' names; one group where no site is known."""
    sites = [
        np.full(len(y), "") if o.sites is None or len(o.sites) != len(y) else np.asarray(o.sites).astype(str)
        for y, o in zip(parts, origins)
    ]
    groups = []
    for site in np.unique(np.concatenate(sites)).tolist():
        rows = [np.flatnonzero(of_part == site) for of_part in sites]
        masks = [y if len(r) == len(y) else y[r] for y, r in zip(parts, rows)]
        values = np.unique(np.concatenate([np.unique(m) for m in masks if m.size] or [np.zeros(0, np.int64)]))
        groups.append(_Group(site, masks, rows, values))
    return groups


def _check(name: str, group: _Group, kind: str, origins: Sequence[Origin]) -> None:
    """Raises DataError (E404) for a site whose values cannot be read."""
    top = int(group.values[-1]) if len(group.values) else 0
    file = group.example(top, origins) if kind in ("void", "unclear") else ""
    if kind == "void":
        below = group.values[:-1]
        mixed = [(m == top).any((1, 2)) & ((m > 0) & (m < top)).any((1, 2)) for m in group.masks]
        why = (
            "255 is often 'void', pixels to be left out, but here every pixel is scored; set it to a class, such as "
            "mask[mask == 255] = 0"
            if any(one.any() for one in mixed)
            else "no mask has both; save all of them with class numbers, such as mask // 255"
        )
        raise DataError(
            "E404",
            f"{name}: masks{group.of_site} hold class numbers ({some(list(map(str, below)), 5)}) and 255 ({file}); {why}.",
        )
    if kind == "unclear":
        values = group.values.tolist()
        how = (
            f": numpy.searchsorted({values}, mask)."
            if len(values) <= MOST_CLASSES
            else ", saved without loss (PNG, not JPEG). Or were images and masks swapped?"
        )
        raise DataError(
            "E404",
            f"{name}: masks{group.of_site} hold values up to {top} ({_shown(group.values)}; {file}), which would make "
            f"{top + 1:,} classes; above {MOST_CLASSES} give classes, or masks whose values are the numbers of the "
            f"classes{how}",
        )


def _check_together(name: str, groups: list[_Group], kinds: Sequence[str], origins: Sequence[Origin]) -> None:
    """Raises DataError (E404) where the values of two sites do not say which of them mean the same."""
    drawn = [group for group, kind in zip(groups, kinds) if kind != "numbers"]
    numbers = [g for g, kind in zip(groups, kinds) if kind == "numbers" and len(g.values) and g.values[-1] > 1]
    if not drawn:
        return
    first, others = drawn[0], (numbers or drawn)
    other = next((g for g in others if g in numbers or _ends(g) != _ends(first)), None)
    if other is not None:
        both = [
            f"masks{g.of_site} hold {_shown(g.values)} ({g.example(int(g.values[-1]), origins)})"
            for g in (other, first)
        ]
        raise DataError(
            "E404",
            f"{name}: {both[0]}, {both[1]}; which of these values mean the same is not to be seen. Save all masks with "
            "the numbers of their classes.",
        )


def _ends(group: _Group) -> tuple[int, int]:
    """(value of the background, of the foreground) of a site with two values or greys; kinds of white are one."""
    top = int(group.values[-1])
    low = int(group.values[0]) if len(group.values) == 2 else 0
    return low, 255 if top in WHITE or len(group.values) > 2 else top


def _told(groups: list[_Group], kinds: Sequence[str]) -> list[Note]:
    """What was made of values that are no class numbers, by site where sites differ."""
    notes: list[Note] = []
    ways: dict[str, list[_Group]] = {}
    for group, kind in zip(groups, kinds):
        if kind == "greys":
            ways.setdefault("greys", []).append(group)
        elif len(group.values) and group.values[-1] > 0:
            ways.setdefault(_shown(group.values) if kind == "two values" else "numbers", []).append(group)
    for way, members in ways.items():
        where = f" of {some([g.site for g in members], 5)}" if len(ways) > 1 else ""
        if way == "greys":
            masks = [m for g in members for m in g.masks]
            share = 100 * sum(((m > 0) & (m < 255)).sum() for m in masks) / sum(m.size for m in masks)
            text = f"were thresholded at 128: nearly black and white, but {share:.1f} % of the pixels are grey"
            notes.append(("labels", f"masks{where} {text}"))
        elif way == "numbers" and len(ways) > 1:
            notes.append(("labels", f"masks{where} hold class numbers, which were kept"))
        elif way != "numbers" and (len(ways) > 1 or way != "0 and 255"):
            notes.append(("labels", f"masks{where} hold {way}, read as background and foreground"))
    return notes


def _numbered(parts: list[np.ndarray], groups: list[_Group], kinds: Sequence[str]) -> list[np.ndarray]:
    """The masks as class numbers, each site by its rule."""
    if all(kind == "numbers" for kind in kinds):
        return parts
    numbered = [np.zeros(y.shape, np.uint8) for y in parts]
    for group, kind in zip(groups, kinds):
        border = MOST_CLASSES if len(group.values) < 2 else int(group.values[-1])
        for y, masks, rows in zip(numbered, group.masks, group.rows):
            y[rows] = masks if kind == "numbers" else masks >= (128 if kind == "greys" else border)
    return numbered


def _shown(values: np.ndarray) -> str:
    """Some values: `0 and 255`, `0, 128 and 255`, `0, 1, 2, 3, 4 and 30 more`."""
    texts = list(map(str, values.tolist()))
    if len(texts) == 1 or len(texts) > 5:
        return some(texts, 5)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _smallest(y: np.ndarray) -> np.ndarray:
    """uint8 where that holds every value, else int64."""
    return y.astype(np.int64 if y.size and (y.min() < 0 or y.max() > 255) else np.uint8)
