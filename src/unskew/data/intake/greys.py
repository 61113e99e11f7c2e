"""Whether greys of masks are blurred edges between black and white, or classes of their own.

Compression and smooth drawing leave many greys near black and white, and some in between along the edges. A class of its
own shows as a hump in the histogram of those in between: most of them, or such as fill areas instead of edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NEAR = 32
"""Greys that compression and smooth edges move black and white at most; what lies further inside is an edge."""
MOST_BETWEEN = 0.3
"""Share of the pixels that may lie further inside."""
FAINT = 0.001
"""Share of the pixels below which a hump is chance."""
SPREAD = 8
"""Different greys that blurred masks have at least, unless all are nearly black or white."""
WIDTH = 17
"""Greys over which the histogram is smoothed; a hump is twice as wide."""


def are_black_and_white(masks: Sequence[np.ndarray]) -> bool:
    """Whether these masks, uint8 values [N, H, W] each, are black and white areas with blurred edges."""
    counts = _counts(masks)
    between = counts[NEAR : 256 - NEAR].sum()
    if not counts[:NEAR].any() or not counts[256 - NEAR :].any() or between > MOST_BETWEEN * counts.sum():
        return False
    if between <= FAINT * counts.sum():
        return True
    share, place = _hump(counts)
    if (counts > 0).sum() < SPREAD or share > 0.5:
        return False
    areas = _counts([one[_filled(one)] for one in masks])[place - WIDTH + 1 : place + WIDTH]
    return share <= 0.25 or areas.sum() <= FAINT * counts.sum()


def _counts(values: Sequence[np.ndarray]) -> np.ndarray:
    """Pixels of each value, [256]."""
    return sum((np.bincount(v.reshape(-1), minlength=256) for v in values), np.zeros(256, np.int64))


def _filled(masks: np.ndarray) -> np.ndarray:
    """Pixels whose eight neighbours all lie between black and white, as they do, bool [N, H, W]."""
    grey = (masks >= NEAR) & (masks < 256 - NEAR)
    padded = np.pad(grey, ((0, 0), (1, 1), (1, 1)))
    height, width = masks.shape[1:]
    for i in range(3):
        for j in range(3):
            grey = grey & padded[:, i : i + height, j : j + width]
    return grey


def _hump(counts: np.ndarray) -> tuple[float, int]:
    """(the largest share of the greys in between that gather around a value with valleys on both its sides, that value)."""
    smooth = np.convolve(counts, np.ones(WIDTH), mode="same")
    total, share, at = max(1, counts[NEAR : 256 - NEAR].sum()), 0.0, 128
    for place in range(NEAR + WIDTH // 2, 256 - NEAR - WIDTH // 2):
        valley = max(smooth[NEAR : place + 1].min(), smooth[place : 256 - NEAR].min())
        gathered = float(counts[place - WIDTH + 1 : place + WIDTH].sum() / total)
        if smooth[place] > 3 * valley and gathered > share:
            share, at = gathered, place
    return share, at
