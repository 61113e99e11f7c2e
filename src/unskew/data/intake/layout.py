"""Which axis of an array holds the channels, as far as shapes can say.

An image has two sides of comparable length. Where these are the axes behind the samples' own, channels come last or are
missing, and the array would be read as one with very many channels.
"""

from __future__ import annotations

import numpy as np

from unskew.errors import DataError

LEAST_SIDE = 8
COLOURS = (1, 2, 3, 4)


def check_layout(name: str, x: np.ndarray, masks: bool = False) -> None:
    """Raises DataError (E403), with the line to write, for [N], for [N, H, W] and for [N, H, W, channels].

    masks: whether every pixel has a label, so that [N, H, W] is certainly an image without channels.
    """
    written = f"{name}: x is {list(x.shape)}"
    if x.ndim == 1:
        raise DataError("E403", f"{written}, one number per sample; write x[:, None] for samples with one column.")
    escape = "or layout='channels first' in unskew.data.arrays if the second axis does hold channels"
    if x.ndim == 4 and x.shape[-1] in COLOURS and x.shape[1] not in COLOURS and _are_sides(x.shape[1:3], 4):
        raise DataError(
            "E403", f"{written}, which looks like [N, H, W, channels]; write x.transpose(0, 3, 1, 2), {escape}."
        )
    if x.ndim == 3 and (masks or _are_sides(x.shape[1:], 2)):
        raise DataError(
            "E403", f"{written}, which looks like images [N, H, W] without channels; write x[:, None], {escape}."
        )


def _are_sides(shape: tuple[int, ...], ratio: float) -> bool:
    """Whether two axes may be the sides of an image: neither short, and below this ratio of one to the other."""
    return min(shape) >= LEAST_SIDE and max(shape) < ratio * min(shape)
