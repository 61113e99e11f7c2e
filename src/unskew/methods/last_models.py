"""The model that each client sent last, which servers that make a model for every client keep: by name, [K, ...]."""

from __future__ import annotations

import torch

from unskew.core import Fed, Tree, Ups, Weights


def first_models(w: Weights, fed: Fed) -> Weights:
    """Before round 1: what all begin with, for each client, of all that clients send."""
    return {n: torch.stack([t] * fed.clients) for n, t in w.items() if n in fed.shared or n in fed.net.buffers}


def last_models(kept: Tree, ups: Ups) -> Weights:
    """After a round: those of the clients that replied in place of their older ones."""
    sent = ups.replies[0].weights
    return {
        n: t.index_copy(0, ups.clients.to(t.device), ups.stack(n).to(t)) if n in sent else t for n, t in kept.items()
    }


def sent_back(kept: Weights, sent: Tree, fed: Fed) -> Weights:
    """The models that clients sent last, where those without samples, who never train, send back what they were sent.

    They would else count for good with the model that all began with.
    """
    idle = torch.as_tensor(fed.sizes == 0).nonzero().flatten()
    if not len(idle):
        return kept
    return {n: t.index_copy(0, idle.to(t.device), sent[n][idle].to(t)) for n, t in kept.items()}
