"""A class for every token of a sample: the next word at each place, or each word's kind.

    loss             of a sample: the mean over its labelled places of -log softmax(z)_y, in nats
    token accuracy   the share of a sample's labelled places whose likeliest class is the true one; the mean over samples
    perplexity       exp of the mean over all labelled places of -log p_y, beside it (`tasks/metrics/tokens.py`)

A place without a label, such as padding, has -1 for it and counts nowhere; every sample has a label at one place at least.
The accuracy is a mean over samples, so that of all rows follows from that of each client's; perplexity does not.
Letters: N samples, B batch, T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from unskew.data.checks import NOWHERE
from unskew.tasks.means import mean


@dataclass(frozen=True)
class TokenLabels:
    """A class for every token that has a label. places: how many tokens a sample has, 0 for as many as numbers."""

    places: int = 0

    name: ClassVar[str] = "tokens"
    main_score: ClassVar[str] = "token_accuracy"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(tokens,): the shape of a sample, unless it is a row of several inputs."""
        return (self.places,) if self.places else tuple(shape)

    def targets(self, y_BT: Tensor, classes: int) -> Tensor:
        """The labels themselves, int64 [B, T]; distributions over a whole vocabulary would be as large as the logits."""
        return y_BT.long()

    def loss(self, z_BTC: Tensor, y_BT: Tensor) -> Tensor:
        """The loss of each sample, [B]; 0 where no place has a label."""
        labelled = y_BT != NOWHERE
        log_p_BT = self._of_labels(z_BTC.log_softmax(-1), y_BT)
        return -log_p_BT.masked_fill(~labelled, 0.0).sum(-1) / labelled.sum(-1).clamp(min=1)

    def predictions(self, z_BTC: Tensor) -> Tensor:
        """The likeliest class at each place, int64 [B, T]."""
        return z_BTC.argmax(-1)

    def probabilities(self, z_BTC: Tensor, y_BT: Tensor) -> Tensor:
        """The probability of each place's label, [B, T]; of anything where there is none."""
        return self._of_labels(z_BTC.softmax(-1), y_BT)

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """token_accuracy of predicted and true labels, both [N, T]; {} for no samples."""
        if not len(true):
            return {}
        labelled = true != NOWHERE
        right_N = ((guess == true) & labelled).sum(1) / np.maximum(labelled.sum(1), 1)
        return {"token_accuracy": float(right_N.mean())}

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """`scores` of one client's test samples."""
        return self.scores(guess, true, classes)

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The scores on all clients' rows from those of each client."""
        return mean(shares, scores)

    @staticmethod
    def _of_labels(values_BTC: Tensor, y_BT: Tensor) -> Tensor:
        return values_BTC.gather(-1, y_BT.clamp(min=0)[..., None])[..., 0]
