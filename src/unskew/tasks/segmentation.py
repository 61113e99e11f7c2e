"""Segmentation: a class for every pixel, trained with cross-entropy and soft Dice, scored by Dice.

    soft Dice   1 - mean_c (2 sum_p p_c y_c + e) / (sum_p p_c + sum_p y_c + e),   e = 1e-5, over all C classes
    ce          mean_p -sum_c y_c log softmax(z)_c
    ce+dice     the mean of the two, as FedFA's public code trains its U-Net (Zhou & Konukoglu, ICLR 2023)
    Dice        2 |P and G| / (|P| + |G|) of an image and a class: left out where both masks are empty, 0 where only one is

Every sum runs over the pixels of one sample, so a batch's loss is a mean over samples.
Letters: N images, B batch, C classes (0 is the background), P pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.means import mean

SMOOTH = 1e-5
LOSSES = ("ce", "dice", "ce+dice")


@dataclass(frozen=True)
class Segmentation:
    """A class for every pixel. kind: which loss training minimises, "ce", "dice" or "ce+dice"."""

    kind: str = "ce+dice"
    name: ClassVar[str] = "segmentation"
    main_score: ClassVar[str] = "dice"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise ValueError(f"kind must be one of {', '.join(LOSSES)}, got '{self.kind}'")

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(height, width) of a mask, for samples of shape [channels, height, width]."""
        return tuple(shape[1:])

    def targets(self, y: Tensor, classes: int) -> Tensor:
        """One-hot masks, float32 [B, C, ...], from masks [B, ...]; a Part may then mix or smooth them."""
        return torch.stack([(y == c).float() for c in range(classes)], 1)

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, [B], from logits and class distributions, both [B, C, ...]."""
        z_BCP, y_BCP = z.flatten(2), y.flatten(2)
        if self.kind == "ce":
            return cross_entropy(z_BCP, y_BCP)
        if self.kind == "dice":
            return soft_dice(z_BCP, y_BCP)
        return (cross_entropy(z_BCP, y_BCP) + soft_dice(z_BCP, y_BCP)) / 2

    def predictions(self, z: Tensor) -> Tensor:
        """The most likely class of every pixel, [B, ...]: uint8 up to 256 classes, int64 above."""
        return z.argmax(1).to(torch.uint8 if z.shape[1] <= 256 else torch.int64)

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """Means over images, in [0, 1]: `dice` over classes but the background, `dice_both` over all; {} for no images.

        An image counts the classes that are in its mask or predicted, so that absent ones do not raise the score; one
        without any counts 1.
        """
        if not len(true):
            return {}
        dice_NC, in_NC = dice(guess, true, classes), present(guess, true, classes)
        return {"dice": _over_present(dice_NC[:, 1:], in_NC[:, 1:]), "dice_both": _over_present(dice_NC, in_NC)}

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """`scores` of one client's test images."""
        return self.scores(guess, true, classes)

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The scores on all clients' rows from those of each client."""
        return mean(shares, scores)


def cross_entropy(z_BCP: Tensor, y_BCP: Tensor) -> Tensor:
    """Cross-entropy of each sample in nats, the mean over its pixels, [B]."""
    return -(y_BCP * F.log_softmax(z_BCP, 1)).sum(1).mean(-1)


def soft_dice(z_BCP: Tensor, y_BCP: Tensor) -> Tensor:
    """One minus the soft Dice of each sample, the mean over classes, [B]."""
    p_BCP = F.softmax(z_BCP, 1)
    both_BC = torch.einsum("bcp,bcp->bc", p_BCP, y_BCP)
    return 1 - ((2 * both_BC + SMOOTH) / (p_BCP.sum(-1) + y_BCP.sum(-1) + SMOOTH)).mean(1)


def dice(guess: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Dice of every image and class, float64 [N, C], from predicted and true masks, both [N, ...]."""
    guess_NP, true_NP = guess.reshape(len(guess), -1), true.reshape(len(true), -1)
    dice_NC = np.ones((len(true), classes))
    for c in range(classes):
        p, g = guess_NP == c, true_NP == c
        size = p.sum(1) + g.sum(1)
        np.divide(2 * (p & g).sum(1), size, out=dice_NC[:, c], where=size > 0)
    return dice_NC


def present(guess: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Whether a class is in the mask of an image or predicted there, bool [N, C]."""
    guess_NP, true_NP = guess.reshape(len(guess), -1), true.reshape(len(true), -1)
    return np.stack([(guess_NP == c).any(1) | (true_NP == c).any(1) for c in range(classes)], axis=1)


def _over_present(dice_NC: np.ndarray, in_NC: np.ndarray) -> float:
    """The mean over images of the mean over the classes that an image has; 1 for an image that has none."""
    if in_NC.all():
        return float(dice_NC.mean())
    count_N = in_NC.sum(1)
    return float(np.where(count_N > 0, (dice_NC * in_NC).sum(1) / np.maximum(count_N, 1), 1.0).mean())
