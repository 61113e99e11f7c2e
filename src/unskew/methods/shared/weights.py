"""Operations on weights that several methods share.

The two ends of a model, for methods that share one and keep the other, or train one after the other. A
client's change of the weights as one vector, and bits in bytes, for Parts that encode weights. The model that
each client sent last, by name, [K, ...], for servers that make a model for every client. Gradients at test
time, and weights in another order, for further models that begin differently.

Letters: D numbers of all shared weights together, n codes of b bits, N bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.core import Batch, Client, Fed, Tree, Ups, Weights, key

HEAD_FIRST_PARTS = ("fedah", "fedpac", "fedrep")
"""Parts by which the body rests in some of a client's steps."""


def in_last_blocks(name: str, blocks: int, fed: Fed) -> bool:
    """Whether a weight or statistic is the head's, or belongs to one of the model's last `blocks` blocks."""
    above = fed.net.blocks[-blocks:] if blocks > 1 else ()
    return fed.net.of_head(name) or name.partition(".")[0] in above


def block_refusal(blocks: int, fed: Fed) -> str | None:
    """Why the model cannot be divided below its last `blocks` blocks, as the end of a sentence; None if it
    can."""
    most = len(fed.net.blocks) - 1
    if blocks <= most:
        return None
    return f"its {blocks} last blocks are the whole model ({', '.join(fed.net.blocks)}); take at most {most}"


def head_first(share: float, c: Client) -> dict[str, Tensor]:
    """What `holds` returns where the first round(share S) of a client's S local steps train the head, the
    others the body.

    Rounding leaves a step to each, or with few steps one of them would stay as it began; a single step trains
    both.
    """
    first = c.step < (share * c.steps).round().clamp(min=1).minimum(c.steps - 1)
    both = c.steps < 2
    return {n: (~first if c.net.of_head(n) else first) & ~both for n in c.net.trainable}


def flatten_change(change: Weights) -> Tensor:
    """[D]: the change of all weights, in their order."""
    return torch.cat([t.flatten() for t in change.values()])


def unflatten_change(v_D: Tensor, w: Weights, fed: Fed) -> Weights:
    """The inverse of `joined`: by name, in the shapes of `w`."""
    pieces = v_D.split([w[n].numel() for n in fed.shared])
    return {n: piece.reshape(w[n].shape) for n, piece in zip(fed.shared, pieces)}


def count_numbers(fed: Fed) -> int:
    """D, of the weights that clients train and send."""
    w = fed.net.weights()
    return sum(w[n].numel() for n in fed.shared)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """[n] whole numbers below 2**bits (1, 2, 4 or 8 bits) -> [N] bytes, N = n bits / 8 rounded up."""
    each = 8 // bits
    padded = torch.nn.functional.pad(codes.to(torch.uint8), (0, -len(codes) % each)).reshape(-1, each)
    places = torch.arange(0, 8, bits, device=codes.device, dtype=torch.uint8)
    return (padded << places).sum(1, dtype=torch.uint8)


def unpack_bits(data: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `packed` for `count` codes, uint8."""
    places = torch.arange(0, 8, bits, device=data.device, dtype=torch.uint8)
    return ((data[:, None] >> places) & (2**bits - 1)).flatten()[:count]


def packed_size(count: int, bits: int) -> int:
    """N, the bytes that `packed` makes of so many codes."""
    return -(-count * bits // 8)


def first_models(w: Weights, fed: Fed) -> Weights:
    """Before round 1: what all begin with, for each client, of all that clients send."""
    return {
        n: torch.stack([t] * fed.clients) for n, t in w.items() if n in fed.shared or n in fed.net.buffers
    }


def last_models(kept: Tree, ups: Ups) -> Weights:
    """After a round: those of the clients that replied in place of their older ones."""
    sent = ups.replies[0].weights
    return {
        n: t.index_copy(0, ups.clients.to(t.device), ups.stack(n).to(t)) if n in sent else t
        for n, t in kept.items()
    }


def with_idle_clients(kept: Weights, sent: Tree, fed: Fed) -> Weights:
    """The models that clients sent last, where those without samples, who never train, send back what they
    were sent.

    They would else count for good with the model that all began with.
    """
    idle = torch.as_tensor(fed.sizes == 0).nonzero().flatten()
    if not len(idle):
        return kept
    return {n: t.index_copy(0, idle.to(t.device), sent[n][idle].to(t)) for n, t in kept.items()}


def test_gradients(w: Weights, b: Batch, c: Client) -> Weights:
    """The gradients, by name, of the task's mean loss over these samples, with the model in evaluation
    mode."""
    with torch.enable_grad():
        leaves = {n: w[n].detach().requires_grad_() for n in c.net.trainable}
        loss = b.mean(c.fed.task.loss(c.run(w | leaves, b.x), b.y))
        grads = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, grads))


def shuffle_tensor(t: Tensor, seed: int, *what: str | int) -> Tensor:
    """A tensor with the same numbers in another order, keyed by the run's seed and by `what` it is for."""
    order = torch.randperm(t.numel(), generator=key(seed, *what))
    return t.flatten()[order.to(t.device)].reshape(t.shape)
