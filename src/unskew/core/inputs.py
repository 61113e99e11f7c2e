"""The inputs of samples one by one, as whatever compares samples has to take them."""

from __future__ import annotations

from torch import Tensor

from unskew.core.network import Network


def each_input(net: Network, x: Tensor) -> list[tuple[Tensor, bool]]:
    """Of samples x [B, ...]: every input [B, ...] of theirs, and whether its numbers stand for kinds.

    Kinds are words, codes and truths: of two that differ, none are farther apart than others, whatever their numbers.
    Of samples with one input all numbers are kinds if the model looks any of them up.
    """
    if not net.layout:
        return [(x, net.embeds)]
    return [(x[:, start:end], each.kind != "float32") for each, start, end in net.layout.places]
