"""How FedDPMS makes vectors to share out of a mean of latents, and finds out whom a client should draw from.

Letters: K clients, C classes, L coordinates of a latent, N vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ATTEMPTS = 200
"""Batches of vectors that are drawn at most until the filter has passed enough."""

Classify = Callable[[Tensor], Tensor]
"""The class that a model takes each latent for, once it is decoded: [N, L] -> [N]."""


def around(mean_L: Tensor, sigma: float, count: int, generator: torch.Generator) -> Tensor:
    """[count, L]: the mean with normal noise of standard deviation sigma."""
    return mean_L + sigma * torch.randn(count, len(mean_L), generator=generator).to(mean_L.device)


def filtered(
    mean_L: Tensor, label: int, sigma: float, count: int, classify: Classify, generator: torch.Generator
) -> Tensor:
    """[<= count, L]: noisy copies of a mean that are taken for its class; fewer than `count` if few pass."""
    passed: list[Tensor] = []
    total = 0
    for _ in range(ATTEMPTS):
        z_NL = around(mean_L, sigma, count, generator)
        passed.append(z_NL[classify(z_NL) == label])
        total += len(passed[-1])
        if total >= count:
            break
    return torch.cat(passed)[:count]


def multiplied(
    means: Tensor, labels: Tensor, spread: float, count: int, classify: Classify, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """([N, L], [N]): around each noisy mean, up to `count` vectors that are taken for its class, or the mean itself."""
    vectors: list[Tensor] = []
    names: list[int] = []
    for mean_L, label in zip(means, labels.tolist()):
        near_NL = around(mean_L, spread, 4 * count, generator)
        right_NL = near_NL[classify(near_NL) == label]
        vectors.append(right_NL[:count] if len(right_NL) else mean_L[None])
        names += [label] * len(vectors[-1])
    return torch.cat(vectors), torch.tensor(names, dtype=torch.int64, device=means.device)


def match(i: int, lacks_KC: Tensor, classes_KC: Tensor) -> int:
    """The client whose shared classes meet most of what client i has least of; the lowest id of several, -1 for none.

    lacks, classes: 1 where a client has least of a class, and where it shares it.
    """
    meets_K = classes_KC @ lacks_KC[i]
    meets_K[i] = 0
    return int(meets_K.argmax()) if meets_K.max() > 0 else -1
