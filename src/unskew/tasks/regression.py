"""Regression: a number for every sample, trained with squared or absolute error, scored in the target's own unit.

    learnt      u = (y - center) / scale: what the model's one output z is compared with
    mse, mae    (z - u)^2, |z - u|
    RMSE        sqrt(mean (g - y)^2)        of predictions g = center + scale z
    MAE         mean |g - y|
    R2          1 - sum (g - y)^2 / sum (y - mean y)^2: left out where all targets are equal, because it is undefined

An answer that is not finite counts as the largest error that a record can hold, so that it is never left out of a mean.
Letters: N samples, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from unskew.tasks.means import mean

LOSSES = ("mse", "mae")
LARGEST = 1e30
"""The largest answer."""


@dataclass(frozen=True)
class Regression:
    """A number for every sample. kind: which loss training minimises, "mse" or "mae"."""

    center: float = 0.0
    scale: float = 1.0
    kind: str = "mse"
    name: ClassVar[str] = "regression"
    main_score: ClassVar[str] = "rmse"
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(): a sample has one target."""
        return ()

    def targets(self, y: Tensor, classes: int) -> Tensor:
        """What the model learns, float32 [B, 1], from targets [B] in their own unit."""
        return ((y.double() - self.center) / self.scale).float()[:, None]

    def loss(self, z_B1: Tensor, y_B1: Tensor) -> Tensor:
        """The error of each sample, [B], in units of `scale` (squared: of its square)."""
        error = z_B1 - y_B1
        return (error.square() if self.kind == "mse" else error.abs()).sum(-1)

    def predictions(self, z_B1: Tensor) -> Tensor:
        """The predicted target of each sample in its own unit, float64 [B]."""
        guess = z_B1[:, 0].double() * self.scale + self.center
        return guess.nan_to_num(nan=LARGEST, posinf=LARGEST, neginf=-LARGEST).clamp(-LARGEST, LARGEST)

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """rmse, mae, and r2 where targets differ, of predicted and true targets, both [N]; {} for no samples."""
        if not len(true):
            return {}
        y = true.astype(np.float64)
        error, spread = guess - y, float(((y - y.mean()) ** 2).sum())
        r2 = {"r2": 1 - float((error**2).sum()) / spread} if y.min() < y.max() else {}
        return self.client_scores(guess, true, classes) | r2

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """rmse and mae on one client's test samples, of which there may be too few for a spread; {} if it has none."""
        if not len(true):
            return {}
        error = guess - true.astype(np.float64)
        return {"rmse": math.sqrt(float((error**2).mean())), "mae": float(np.abs(error).mean())}

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The scores on all clients' rows from those of each client: squares are averaged, not their roots."""
        square = sum(share * one["rmse"] ** 2 for share, one in zip(shares, scores, strict=True))
        return {"rmse": math.sqrt(square), "mae": mean(shares, scores)["mae"]}
