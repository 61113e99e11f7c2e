"""Soft cross-entropy and scores against hand-worked numbers."""

from __future__ import annotations

import numpy as np
import torch

from tests.fixtures import Y, Z, assert_close, onehot
from unskew.tasks.task import Classification


def test_cross_entropy_and_its_gradient():
    z = Z.clone().requires_grad_()
    losses = Classification().loss(z, onehot(Y))
    assert_close(losses, [0.2413, 0.6803])
    losses.mean().backward()
    assert_close(z.grad, [[-0.1072, 0.0876, 0.0196], [0.0932, -0.2468, 0.1536]])


def test_a_masked_class_without_mass_costs_nothing():
    z = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = Classification().loss(z, torch.tensor([[0.5, 0.5, 0.0]]))
    loss.backward()
    assert_close(loss, [0.8133])
    assert torch.isfinite(z.grad).all()


def test_scores():
    found = Classification().metrics(np.array([[8, 2, 0], [5, 5, 0], [0, 0, 0]]))
    assert_close(
        [found["accuracy"], found["macro_f1"], found["worst_class"]], [0.65, (16 / 23 + 10 / 17) / 2, 0.5]
    )


def test_scores_of_many_classes_need_no_matrix_of_all_pairs():
    """100,000 names of classes in a file, for two that occur, asked for 75 GiB of memory."""
    true, guess = np.array([0] * 10 + [1] * 10), np.array([0] * 8 + [1] * 2 + [0] * 5 + [1] * 5)
    task = Classification()
    few = task.metrics(np.array([[8, 2], [5, 5]]))
    assert (
        task.scores(guess, true, 2)
        == task.scores(guess, true, 3)
        == task.scores(guess, true, 1_000_000)
        == few
    )
    assert task.scores(guess[:0], true[:0], 2) == {}


def test_a_mixed_target_costs_the_mixture():
    y = torch.tensor([[0.25, 0.0, 0.75], [0.0, 0.7, 0.3]])
    losses = Classification().loss(Z, y)
    assert_close(losses, [2.4913, 0.8303])
    assert_close(losses.mean(), 1.6608)
    assert_close(Classification().loss(Z, onehot(Y)).mean(), 0.4608)


def test_a_class_of_no_mass_costs_exactly_nothing_and_one_of_mass_everything():
    z = torch.tensor([[0.0, -torch.inf]])
    assert Classification().loss(z, torch.tensor([[1.0, 0.0]])).item() == 0
    assert Classification().loss(z, torch.tensor([[0.5, 0.5]])).item() == torch.inf


def test_the_loss_under_vmap_is_the_loss_of_each():
    task, g = Classification(), torch.Generator().manual_seed(1)
    z_GBC = torch.randn(3, 4, 5, generator=g)
    y_GB = torch.randint(0, 5, (3, 4), generator=g)
    losses_GB = torch.func.vmap(lambda z, y: task.loss(z, task.targets(y, 5)))(z_GBC, y_GB)
    expected = torch.nn.functional.cross_entropy(z_GBC.flatten(0, 1), y_GB.flatten(), reduction="none")
    torch.testing.assert_close(losses_GB.flatten(), expected)


def test_targets_keep_classes_nobody_holds():
    found = Classification().targets(Y, 4)
    assert found.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert found.dtype == torch.float32
    assert Classification().predictions(Z).tolist() == [0, 1]


def test_scores_of_pieces_add_up_and_nothing_scores_nothing():
    task = Classification()
    pieces = [np.array([[3, 1], [0, 0]]), np.array([[0, 0], [2, 4]])]
    assert task.metrics(sum(pieces)) == {
        "accuracy": 0.7,
        "macro_f1": (6 / 9 + 8 / 11) / 2,
        "worst_class": 4 / 6,
    }
    assert task.metrics(sum(pieces), loss_sum=5.0)["loss"] == 0.5
    assert task.metrics(np.zeros((2, 2), int)) == {}
