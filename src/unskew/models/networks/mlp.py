"""A dense network for samples of any shape."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from annotated_types import Gt
from torch import nn

from unskew.models.blocks import Blocks, seq


def mlp(
    shape: tuple[int, ...],
    classes: int,
    hidden: Annotated[tuple[Annotated[int, Gt(0)], ...], "units of each hidden layer; () for none"] = (128,),
) -> Blocks:
    """Flatten, then dense layers with ReLU. Cut after the first."""
    widths = [math.prod(shape), *hidden]
    dense = {f"fc{i + 1}": seq(nn.Linear(a, b), nn.ReLU()) for i, (a, b) in enumerate(pairwise(widths))}
    return Blocks(
        "fc1" if hidden else "flat", True, flat=nn.Flatten(), **dense, head=nn.Linear(widths[-1], classes)
    )
