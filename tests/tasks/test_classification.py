"""Soft cross-entropy and scores against hand-worked numbers."""

from __future__ import annotations

import numpy as np
import torch

from tests.fixtures import Y, Z, close, onehot
from unskew.tasks.classification import Classification


def test_cross_entropy_and_its_gradient():
    z = Z.clone().requires_grad_()
    losses = Classification().loss(z, onehot(Y))
    close(losses, [0.2413, 0.6803])
    losses.mean().backward()
    close(z.grad, [[-0.1072, 0.0876, 0.0196], [0.0932, -0.2468, 0.1536]])


def test_a_masked_class_without_mass_costs_nothing():
    z = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = Classification().loss(z, torch.tensor([[0.5, 0.5, 0.0]]))
    loss.backward()
    close(loss, [0.8133])
    assert torch.isfinite(z.grad).all()


def test_scores():
    found = Classification().metrics(np.array([[8, 2, 0], [5, 5, 0], [0, 0, 0]]))
    close([found["accuracy"], found["macro_f1"], found["worst_class"]], [0.65, (16 / 23 + 10 / 17) / 2, 0.5])
