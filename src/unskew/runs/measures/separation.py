"""Separation of classes in feature space: the Davies-Bouldin index (Davies and Bouldin, 1979); 0 is best.

s_i = mean over group i of |x - m_i|,   m_i its mean,   d_ij = |m_i - m_j|
DB  = mean_i max_{j != i} (s_i + s_j) / d_ij
Differs from scikit-learn: NaN instead of 0 for points that do not vary.
Letters: N points or rows, C groups, D features.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unskew.core.replies import Reply
from unskew.round.clients import Broadcast
from unskew.round.probes import MOST_ROWS, Measurement, Probe, RoundEnd, WeightsOf, mean


def davies_bouldin(x_ND: Tensor, group_N: Tensor) -> float:
    """Davies-Bouldin index of the points x_ND grouped by group_N.

    NaN with fewer than two groups, if two groups have equal means, and if a value is not finite.
    """
    groups, index_N = group_N.unique(return_inverse=True)
    C = len(groups)
    if C < 2 or not bool(torch.isfinite(x_ND).all()):
        return float("nan")
    x_ND = x_ND.to(torch.float64)
    one_NC = torch.nn.functional.one_hot(index_N, C).to(x_ND.dtype)
    n_C = one_NC.sum(0)
    mean_CD = one_NC.T @ x_ND / n_C[:, None]
    spread_C = one_NC.T @ (x_ND - mean_CD[index_N]).norm(dim=1) / n_C
    apart_CC = (mean_CD[:, None] - mean_CD[None, :]).norm(dim=2)
    other_CC = ~torch.eye(C, dtype=torch.bool, device=x_ND.device)
    if bool((apart_CC[other_CC] == 0).any()):
        return float("nan")
    ratio_CC = (spread_C[:, None] + spread_C[None, :]) / torch.where(other_CC, apart_CC, 1.0)
    return float(torch.where(other_CC, ratio_CC, 0.0).max(1).values.mean())


class Separation(Probe):
    """Four indices: training and test rows, under local models (mean over clients) and under the global
    model."""

    def refuse(self) -> str | None:
        if self.fed.task.name != "classification":
            return "it tells classes of samples apart, and here every pixel has a class"
        return None if self.fed.classes > 1 else "there is one class"

    def measure(self, end: RoundEnd) -> Measurement:
        lens, trainer = self.lens, self.trainer
        rows = lens.choice(np.arange(len(lens.scoring.y)), MOST_ROWS, "test rows")
        y_N = lens.test_labels(rows)

        def of_client(reply: Reply, weights_of: WeightsOf, start: Broadcast) -> tuple[float, float]:
            k, w = reply.client, weights_of(reply, start)
            test = davies_bouldin(lens.test_features(rows, k, w, start), y_N) if len(rows) else float("nan")
            return davies_bouldin(*lens.training_features(k, w, start)), test

        local = lens.each(lambda r: of_client(r, lens.trained_weights, end.sent), end.some_replies)
        indices = {"train_local": mean([a for a, _ in local]), "test_local": mean([b for _, b in local])}
        if trainer.sent and not trainer.keeps_model:
            indices |= lens.each(lambda _: self._global(end, rows, y_N), [None])[0]
        elif trainer.sent:  # every client has its own global model
            held = lens.each(lambda r: of_client(r, lens.held_weights, end.after), end.some_replies)
            indices |= {"train_global": mean([a for a, _ in held]), "test_global": mean([b for _, b in held])}
        return Measurement({f"separation_{name}": value for name, value in indices.items()})

    def _global(self, end: RoundEnd, rows: np.ndarray, y_N: Tensor) -> dict[str, float]:
        """The two indices of the global model. rows, y_N: the indices of the test rows, and their labels."""
        lens, w, indices = self.lens, end.after.weights, {}
        if end.some_replies:
            each = max(2, MOST_ROWS // len(end.some_replies))
            pairs = [lens.training_features(r.client, w, end.after, each) for r in end.some_replies]
            x_ND, label_N = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
            indices["train_global"] = davies_bouldin(x_ND, label_N)
        if len(rows) and self.fed.natural and lens.scoring.own_inputs:
            own = [(k, lens.choice(lens.scoring.test[k], MOST_ROWS, k)) for k in lens.scoring.clients]
            x_ND = torch.cat([lens.test_features(own_rows, k, w, end.after) for k, own_rows in own])
            label_N = lens.test_labels(np.concatenate([own_rows for _, own_rows in own]))
            indices["test_global"] = davies_bouldin(x_ND, label_N)
        elif len(rows):
            indices["test_global"] = davies_bouldin(lens.test_features(rows, -1, w, end.after), y_N)
        return indices
