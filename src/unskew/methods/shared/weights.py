"""Operations on weights that several methods share.

For methods that divide a model: its two ends. For Parts that encode weights: a client's change as one vector,
and codes packed into bytes. For servers that make a model for every client: the models that the clients sent
last, [K, ...] by name. For personal and further models: gradients at test time, and shuffled initial weights.

Letters: D numbers of all shared weights together, n codes of b bits, N bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unskew.core import Batch, Client, Fed, Tree, Ups, Weights, key

HEAD_FIRST_PARTS = ("fedah", "fedpac", "fedrep")
"""Parts that do not train the body in some of a client's steps."""


def in_last_blocks(name: str, blocks: int, fed: Fed) -> bool:
    """Whether a weight or statistic belongs to the head or to one of the model's last `blocks` blocks."""
    above = fed.net.blocks[-blocks:] if blocks > 1 else ()
    return fed.net.of_head(name) or name.partition(".")[0] in above


def block_refusal(blocks: int, fed: Fed) -> str | None:
    """The reason why the model cannot be divided below its last `blocks` blocks, as the end of a sentence;
    None if it can."""
    most = len(fed.net.blocks) - 1
    if blocks <= most:
        return None
    return f"its {blocks} last blocks are the whole model ({', '.join(fed.net.blocks)}); take at most {most}"


def head_first(share: float, c: Client) -> dict[str, Tensor]:
    """The return value of `holds` if the first round(share S) of a client's S local steps train the head and
    the others the body.

    Head and body get at least one step each; a single step trains both.
    """
    first = c.step < (share * c.steps).round().clamp(min=1).minimum(c.steps - 1)
    both = c.steps < 2
    return {n: (~first if c.net.of_head(n) else first) & ~both for n in c.net.trainable}


def flatten_change(change: Weights) -> Tensor:
    """The change of all weights as one vector, [D], in the order of the weights."""
    return torch.cat([t.flatten() for t in change.values()])


def unflatten_change(v_D: Tensor, w: Weights, fed: Fed) -> Weights:
    """The inverse of `flatten_change`: weights by name, in the shapes of `w`."""
    pieces = v_D.split([w[n].numel() for n in fed.shared])
    return {n: piece.reshape(w[n].shape) for n, piece in zip(fed.shared, pieces)}


def count_numbers(fed: Fed) -> int:
    """The number D of weights that clients train and send."""
    w = fed.net.weights()
    return sum(w[n].numel() for n in fed.shared)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Packs n whole numbers below 2**bits (1, 2, 4 or 8 bits) into N = n bits / 8 bytes, rounded up."""
    each = 8 // bits
    padded = torch.nn.functional.pad(codes.to(torch.uint8), (0, -len(codes) % each)).reshape(-1, each)
    places = torch.arange(0, 8, bits, device=codes.device, dtype=torch.uint8)
    return (padded << places).sum(1, dtype=torch.uint8)


def unpack_bits(data: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack_bits` for `count` codes, uint8."""
    places = torch.arange(0, 8, bits, device=data.device, dtype=torch.uint8)
    return ((data[:, None] >> places) & (2**bits - 1)).flatten()[:count]


def packed_size(count: int, bits: int) -> int:
    """The number N of bytes into which `pack_bits` packs `count` codes."""
    return -(-count * bits // 8)


def first_models(w: Weights, fed: Fed) -> Weights:
    """One copy of the initial weights and buffers for each client, [K, ...] by name, for use before
    round 1."""
    return {
        n: torch.stack([t] * fed.clients) for n, t in w.items() if n in fed.shared or n in fed.net.buffers
    }


def last_models(kept: Tree, ups: Ups) -> Weights:
    """The models that clients sent last, after a round: new replies replace older ones."""
    sent = ups.replies[0].weights
    return {
        n: t.index_copy(0, ups.clients.to(t.device), ups.stack(n).to(t)) if n in sent else t
        for n, t in kept.items()
    }


def with_idle_clients(kept: Weights, received: Callable[[int], Weights], fed: Fed) -> Weights:
    """The models that clients sent last, where clients without samples have the model they received.

    Such clients never train, and would otherwise always count with the initial model. received: the weights
    that client k was sent.
    """
    for k in (fed.sizes == 0).nonzero()[0].tolist():
        u = received(k)
        kept = {
            n: t.index_copy(0, torch.tensor([k], device=t.device), u[n][None].to(t)) for n, t in kept.items()
        }
    return kept


def row(models: Tree, k: int) -> Weights:
    """The model of client k among those of all clients, [K, ...] by name."""
    return {n: t[k] for n, t in models.items()}


def test_gradients(w: Weights, b: Batch, c: Client) -> Weights:
    """Gradients, by name, of the task's mean loss over these samples, with the model in evaluation mode."""
    with torch.enable_grad():
        leaves = {n: w[n].detach().requires_grad_() for n in c.net.trainable}
        loss = b.mean(c.fed.task.loss(c.run(w | leaves, b.x), b.y))
        grads = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, grads))


def shuffle_tensor(t: Tensor, seed: int, *what: str | int) -> Tensor:
    """The same numbers in another order, keyed by the run's seed and the purpose `what`."""
    order = torch.randperm(t.numel(), generator=key(seed, *what))
    return t.flatten()[order.to(t.device)].reshape(t.shape)
