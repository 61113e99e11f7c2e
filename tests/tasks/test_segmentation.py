"""Losses and scores of masks, against values worked out by hand and against slower formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unskew.core.client import Batch
from unskew.errors import UsageError
from unskew.tasks.task import DICE_SMOOTHING, Segmentation, cross_entropy, dice, soft_dice, task_of

# one image of four pixels, two classes: probabilities of class 1 are .5, .5, .8, .2; the mask is 1, 0, 1, 0
P1 = torch.tensor([0.5, 0.5, 0.8, 0.2])
Z = torch.stack([torch.zeros(4), torch.logit(P1)])[None]  # [B=1, C=2, P=4]
Y = torch.tensor([[[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]])


def test_losses_by_hand():
    """CE: -(ln .5 + ln .5 + ln .8 + ln .8) / 4. Dice: both overlap by 1.3 of 2 + 2: 1 - 2.6 / 4."""
    ce = -(2 * math.log(0.5) + 2 * math.log(0.8)) / 4
    soft = 1 - (2.6 + DICE_SMOOTHING) / (4 + DICE_SMOOTHING)
    assert cross_entropy(Z, Y).item() == pytest.approx(ce, abs=1e-6)
    assert soft_dice(Z, Y).item() == pytest.approx(soft, abs=1e-6)
    masks = [t.reshape(1, 2, 2, 2) for t in (Z, Y)]
    for kind, expected in (("ce", ce), ("dice", soft), ("ce+dice", (ce + soft) / 2)):
        assert Segmentation(kind).loss(*masks).item() == pytest.approx(expected, abs=1e-6)


def test_a_loss_is_one_number_a_sample_and_padding_does_not_reach_it():
    g = torch.Generator().manual_seed(1)
    z, y = torch.randn(3, 2, 6, 6, generator=g), torch.randint(0, 2, (3, 6, 6), generator=g)
    task = Segmentation()
    y = task.targets(y, 2)
    each = task.loss(z, y)
    assert each.shape == (3,)
    alone = torch.cat([task.loss(z[i : i + 1], y[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(each, alone)
    weight = torch.tensor([1.0, 1.0, 0.0])
    assert Batch(z, y, weight).mean(each).item() == pytest.approx(each[:2].mean().item(), abs=1e-6)


@pytest.mark.parametrize("kind", ["ce", "dice", "ce+dice"])
def test_side_by_side_is_one_after_another(kind):
    g = torch.Generator().manual_seed(2)
    z, y = torch.randn(4, 3, 2, 5, 5, generator=g), torch.randint(0, 2, (4, 3, 5, 5), generator=g)
    task = Segmentation(kind)
    y = torch.stack([task.targets(t, 2) for t in y])
    many = torch.func.vmap(torch.func.grad(lambda z, y: task.loss(z, y).mean()))(z, y)
    for k in range(4):
        leaf = z[k].clone().requires_grad_()
        task.loss(leaf, y[k]).mean().backward()
        torch.testing.assert_close(many[k], leaf.grad)


def test_targets_are_the_masks_classes():
    y = torch.tensor([[[0, 2], [1, 0]]], dtype=torch.uint8)
    made = Segmentation().targets(y, 3)
    assert made.shape == (1, 3, 2, 2)
    assert torch.equal(made.argmax(1), y.long())
    assert (made.sum(1) == 1).all()


def test_dice_by_hand_and_empty_masks():
    """1: found 3, true 2, both 1: 2/5; background 1, 2, 0: 0.2:empty: 1. 3: found 1 of 0."""
    guess = np.array([[[1, 1], [1, 0]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]], dtype=np.uint8)
    true = np.array([[[1, 0], [0, 1]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]], dtype=np.uint8)
    found = dice(guess, true, 2)
    np.testing.assert_allclose(found, [[0, 2 / 5], [1, 1], [6 / 7, 0]])
    scores = Segmentation().scores(guess, true, 2)
    assert scores["dice"] == pytest.approx((0.4 + 1 + 0) / 3)
    assert scores["dice_both"] == pytest.approx((0 + 0.4 + 1 + 1 + 6 / 7 + 0) / 6)
    assert Segmentation().scores(guess[:0], true[:0], 2) == {}


def test_more_classes_than_two():
    """dice leaves the background out, dice_both does not."""
    true = np.array([[0, 1, 2, 2]])[:, :, None]
    guess = np.array([[0, 1, 1, 2]])[:, :, None]
    each = [1, 2 / 3, 2 / 3]
    found = Segmentation().scores(guess, true, 3)
    assert found == {"dice": pytest.approx(np.mean(each[1:])), "dice_both": pytest.approx(np.mean(each))}


def test_absent_classes_do_not_raise_the_score():
    """D2: of 256 classes, those that an image neither has nor is predicted to have do not count."""
    true, guess = np.array([[[1, 1, 0, 0]], [[0, 0, 0, 0]]]), np.array([[[1, 0, 3, 0]], [[0, 0, 0, 0]]])
    scores = Segmentation().scores(guess, true, 256)
    assert scores["dice"] == pytest.approx(((2 / 3 + 0) / 2 + 1) / 2)
    assert scores["dice_both"] == pytest.approx(((1 / 2 + 2 / 3 + 0) / 3 + 1) / 2)


def test_labels_choose_the_task():
    assert task_of(np.zeros(3, int)).name == "classification"
    assert task_of(np.zeros((3, 4, 4), np.uint8)).main_score == "dice"
    assert task_of(np.zeros((3, 4, 4), np.uint8), "dice").kind == "dice"
    with pytest.raises(UsageError, match="E109 loss=dice does not fit"):
        task_of(np.zeros(3, int), "dice")
    with pytest.raises(ValueError, match="kind must be one of"):
        Segmentation("focal")
