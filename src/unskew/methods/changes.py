"""A client's change of the weights as one vector, and bits in bytes: what Parts that encode weights share.

Letters: D numbers of all shared weights together, n codes of b bits, N bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.core import Fed, Weights


def joined(change: Weights) -> Tensor:
    """[D]: the change of all weights, in their order."""
    return torch.cat([t.flatten() for t in change.values()])


def parted(v_D: Tensor, w: Weights, fed: Fed) -> Weights:
    """The inverse of `joined`: by name, in the shapes of `w`."""
    pieces = v_D.split([w[n].numel() for n in fed.shared])
    return {n: piece.reshape(w[n].shape) for n, piece in zip(fed.shared, pieces)}


def numbers(fed: Fed) -> int:
    """D, of the weights that clients train and send."""
    w = fed.net.weights()
    return sum(w[n].numel() for n in fed.shared)


def packed(codes: Tensor, bits: int) -> Tensor:
    """[n] whole numbers below 2**bits (1, 2, 4 or 8 bits) -> [N] bytes, N = n bits / 8 rounded up."""
    each = 8 // bits
    padded = torch.nn.functional.pad(codes.to(torch.uint8), (0, -len(codes) % each)).reshape(-1, each)
    places = torch.arange(0, 8, bits, device=codes.device, dtype=torch.uint8)
    return (padded << places).sum(1, dtype=torch.uint8)


def unpacked(data: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `packed` for `count` codes, uint8."""
    places = torch.arange(0, 8, bits, device=data.device, dtype=torch.uint8)
    return ((data[:, None] >> places) & (2**bits - 1)).flatten()[:count]


def room(count: int, bits: int) -> int:
    """N, the bytes that `packed` makes of so many codes."""
    return -(-count * bits // 8)
