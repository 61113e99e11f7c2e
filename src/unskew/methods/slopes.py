"""Gradients at test time, for methods that fit a client's own model when it is scored."""

from __future__ import annotations

import torch

from unskew.core import Batch, Client, Weights


def slopes(w: Weights, b: Batch, c: Client) -> Weights:
    """The gradients, by name, of the task's mean loss over these samples, with the model in evaluation mode."""
    with torch.enable_grad():
        leaves = {n: w[n].detach().requires_grad_() for n in c.net.trainable}
        loss = b.mean(c.fed.task.loss(c.run(w | leaves, b.x), b.y))
        grads = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, grads))
