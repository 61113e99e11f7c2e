"""What an exported model takes, and samples to try it on.

Letters: N samples.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn

from unskew.engine.export import several
from unskew.engine.export.whole import Whole

Samples: TypeAlias = Tensor | dict[str, Tensor]
"""Samples [N, ...], or several inputs by the names of a graph's."""

TRIED = 3
"""Samples that an exported model and ours both answer before the export is written. Not 2: a graph is made with 2."""
TYPES = {"uint8": torch.uint8, "uint16": torch.uint16}


def type_of(dtype: str, whole: Whole) -> str:
    """The type of the numbers that an exported model takes, from that of the training samples.

    Bytes and 16-bit numbers stay what they are where they are divided; whole numbers that are looked up are int64.
    """
    if whole.inputs is None:
        return "int64"
    return dtype if dtype in TYPES and whole.inputs.divided_by > 1 else "float32"


def drawn(whole: Whole, shape: tuple[int, ...], dtype: str, count: int) -> Samples:
    """Samples [count, *shape] of this type, spread over the range of the training samples; the same every time."""
    entries = min(
        (m.num_embeddings for m in whole.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)), default=2
    )
    if whole.layout:
        return several.drawn(whole.layout, entries, whole.inputs, count)
    even = (torch.arange(count * math.prod(shape)) * 0.6180339887498949 % 1).reshape(count, *shape)
    if whole.inputs is None:
        return (even * entries).long()
    if dtype in TYPES:
        return (even * whole.inputs.divided_by).round().to(TYPES[dtype])
    row = (1, -1, *[1] * (len(shape) - 1))
    mean, std = (v.reshape(row) for v in (whole.inputs.mean, whole.inputs.std))
    return ((even * 4 - 2) * std + mean).float()
