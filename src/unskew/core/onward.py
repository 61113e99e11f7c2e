"""Whether a pass can go on from a cut with what lies there alone: found by trying both ways on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def logits_shape(
    run: Callable[..., tuple[Tensor, Tensor]], shape: tuple[int, ...], since: str
) -> tuple[int, ...] | None:
    """The shape of one sample's logits where a pass from the cut `since` ends in those of a whole pass; None where not.

    run: `run(x, since=, until=)`, in evaluation mode, gives (output, what the head received). shape: of one input.
    A model that only lays the head's outputs out in another way, by nn.Flatten say, ends in the same numbers.
    """
    x = torch.arange(2 * math.prod(shape)).sin().mul(0.5).add(0.5).reshape(2, *shape)
    try:
        with torch.no_grad():
            z, h = run(x)
            h = h if since == "features" else run(x, until=since)[0]
            again = run(h, since=since)[0]
    except RuntimeError:
        return None
    same = again.numel() == z.numel() and torch.allclose(z, again.reshape(z.shape), rtol=1e-3, atol=1e-5)
    return tuple(z.shape[1:]) if same else None
