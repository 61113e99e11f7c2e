"""Masks in the forms that drawing programs and image files leave them in, as class numbers.

0 and 255                        background and foreground
more than 20 classes, most of    thresholded at 128: compression and smooth edges turn black and white into greys
the pixels near 0 or 255
more than 20 classes otherwise   refused, unless the classes are named
"""

from __future__ import annotations

import numpy as np

from unskew.data.intake.notes import Note
from unskew.errors import DataError

MOST_CLASSES = 20
"""Classes of masks at most, unless they are named."""
NEAR = 32
"""Greys that compression and smooth edges move black and white at most; what lies further inside is an edge."""
BORDER = 12
"""Further greys in which many pixels may gather without being a class of their own."""
MOST_BETWEEN = 0.3
"""Share of the pixels that may lie further inside."""


def as_masks(
    name: str, parts: list[np.ndarray], classes: tuple[str, ...] | None, notes: list[Note]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """(masks as uint8, or int64 above 256 classes; the names of the classes). parts: of training and test samples.

    Raises DataError (E404) for values that are not whole, and for more than 20 classes that nobody has named.
    """
    parts = [_whole(name, y) for y in parts]
    filled = [y for y in parts if y.size]
    if filled and max(int(y.max()) for y in filled) == 255 and all(np.isin(y, (0, 255)).all() for y in filled):
        parts = [y == 255 for y in parts]
    elif classes is None and filled and max(int(y.max()) for y in filled) >= MOST_CLASSES:
        parts = _thresholded(name, parts, notes)
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


def _thresholded(name: str, parts: list[np.ndarray], notes: list[Note]) -> list[np.ndarray]:
    """Black and white that compression or smooth edges have blurred, as 0 and 1."""
    values = np.concatenate([y.reshape(-1) for y in parts if y.size])
    top = int(values.max())
    counts = np.bincount(values.astype(np.int64), minlength=256) if values.min() >= 0 and top < 256 else np.ones(0)
    if not len(counts) or not _is_black_and_white(counts):
        shown = ", ".join(map(str, np.unique(values)[:5].tolist()))
        raise DataError(
            "E404",
            f"{name}: masks hold values up to {top} ({shown} ...), which would make {top + 1:,} classes; above "
            f"{MOST_CLASSES} give classes, or masks whose values are the numbers of the classes.",
        )
    share = 100 * counts[1:255].sum() / counts.sum()
    notes.append(
        ("labels", f"masks were thresholded at 128: nearly black and white, but {share:.1f} % of the pixels are grey")
    )
    return [y >= 128 for y in parts]


def _is_black_and_white(counts: np.ndarray) -> bool:
    """Whether greys are edges between black and white: few, and not gathered around a value of their own.

    counts: pixels of each value from 0 to 255.
    """
    between = counts[NEAR : 256 - NEAR]
    total = between.sum()
    if not counts[:NEAR].any() or not counts[256 - NEAR :].any() or total > MOST_BETWEEN * counts.sum():
        return False
    inside = between[BORDER:-BORDER]  # what compression leaves grows fewer and fewer away from black and white
    windows = np.convolve(inside, np.ones(9), mode="valid")
    return total <= 0.001 * counts.sum() or windows.max() <= 0.5 * total


def _smallest(y: np.ndarray) -> np.ndarray:
    """uint8 where that holds every value, else int64."""
    return y.astype(np.int64 if y.size and (y.min() < 0 or y.max() > 255) else np.uint8)
