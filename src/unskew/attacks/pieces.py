"""What of a sample an attack recovers or marks: all of it, or of several inputs one at a time.

Letters: N samples, D numbers of a row of several inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unskew.data.layout import Layout

Image = tuple[int, int, tuple[int, ...]]
"""Where an image begins and ends in a row, and its shape; a sample that is an image lies in no row, from 0 to 0."""


def pieces(layout: Layout | None, x: Tensor) -> dict[str, Tensor]:
    """Samples [N, ...] under the name "", or each input of rows [N, D] under its own, [N, *shape], [N, 1] of single numbers.

    Whole numbers and truth values stay the floats as which they travel.
    """
    if layout is None:
        return {"": x}
    return {each.name: x[:, start:end].reshape(len(x), *(each.shape or (1,))) for each, start, end in layout.places}


def laid_out(layout: Layout, of: Mapping[str, Tensor]) -> Tensor:
    """[D], for every number of a row the one number of its input. of: by the name of the input."""
    return torch.cat([of[each.name].expand(end - start) for each, start, end in layout.places])


def worded(piece: str, text: str) -> str:
    """What a score is of: of which input, and what."""
    return f"{piece}: {text}" if piece else text


def image_of(layout: Layout | None, shape: tuple[int, ...], least: int) -> Image | None:
    """The first image whose sides are `least` or more, if there is one. shape: of a sample."""
    images = [(0, 0, shape)] if layout is None else [(start, end, each.shape) for each, start, end in layout.images]
    return next((i for i in images if len(i[2]) == 3 and min(i[2][1:]) >= least), None)
