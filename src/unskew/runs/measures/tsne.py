"""t-SNE (van der Maaten and Hinton, JMLR 2008) of clients' test features, under local and global models.

scikit-learn computes it. Features are reduced to their first 50 principal components, and the embedding
begins at the first two. Distances between far groups, and the sizes of groups, mean little in such a picture.
Letters: N points or rows, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.replies import Reply
from unskew.round.clients import Broadcast
from unskew.round.probes import Measurement, Probe, RoundEnd, WeightsOf
from unskew.runs.measures.separation import davies_bouldin

PERPLEXITY = 30.0
COMPONENTS = 50


def plane(x_ND: np.ndarray, seed: int = 0) -> np.ndarray:
    """The positions [N, 2] of the points x_ND in the plane; deterministic for equal points and seeds.

    Zeros with fewer than four points, and for points that do not vary.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    x_ND = np.asarray(x_ND, dtype=np.float64)
    N = len(x_ND)
    if N < 4 or not np.isfinite(x_ND).all() or not np.ptp(x_ND, axis=0).any():
        return np.zeros((N, 2))
    with threadpool_limits(1):  # sums over several threads depend on their number
        kept = min(COMPONENTS, *x_ND.shape)
        x_ND = PCA(kept, svd_solver="full").fit_transform(x_ND)
        begin = "pca" if kept > 1 else "random"
        perplexity = min(PERPLEXITY, (N - 1) / 3)
        embedding = TSNE(
            2, perplexity=perplexity, init=begin, learning_rate="auto", random_state=seed, n_jobs=1
        )
        return embedding.fit_transform(x_ND.astype(np.float32)).astype(np.float64)


CLIENTS, ROWS = 10, 150
"""Maximum number of clients, and of test rows per client."""


@dataclass(frozen=True)
class Points:
    """Test rows as points. x_ND: features. client_N: the client of each row. rows_N: the row in the test
    set."""

    x_ND: Tensor
    client_N: Tensor
    rows_N: np.ndarray


class TSNE(Probe):
    """After the last round: points of clients' test rows, and how well features separate the *clients*."""

    def refuse(self) -> str | None:
        if self.fed.task.name != "classification":
            return "its picture is of samples of one class each, and here every pixel has a class"
        return None if len(self.lens.scoring.clients) > 1 else "fewer than two clients have test rows"

    def measure(self, end: RoundEnd) -> Measurement:
        if not end.last:
            return Measurement()
        points = self._points(end)
        values = {f"sites_{kind}": davies_bouldin(p.x_ND, p.client_N) for kind, p in points.items()}
        return Measurement(values, self._picture(points))

    def _picture(self, points: Mapping[str, Points]) -> dict[str, Any]:
        picture: dict[str, Any] = {"names": list(self.lens.client_names)}
        for kind, p in points.items():
            xy_N2 = plane(p.x_ND.cpu().numpy(), self.fed.seed)
            labels = self.lens.scoring.y[p.rows_N].tolist()
            picture[kind] = {
                "client": p.client_N.tolist(),
                "label": labels,
                "xy": np.round(xy_N2, 2).tolist(),
            }
        return picture

    def _points(self, end: RoundEnd) -> dict[str, Points]:
        """Points under the clients' "local" models, and under the "global" model if there is one."""
        lens = self.lens
        replies = [r for r in end.replies if len(lens.scoring.test[r.client])][:CLIENTS]
        if len(replies) < 2:
            return {}
        rows = [lens.choice(lens.scoring.test[r.client], ROWS, "tsne", r.client) for r in replies]
        client_N = torch.cat([torch.full((len(n),), r.client) for r, n in zip(replies, rows)])
        kinds: dict[str, tuple[WeightsOf, Broadcast]] = {"local": (lens.trained_weights, end.sent)}
        if self.trainer.sent:
            kinds["global"] = (lens.held_weights, end.after)
        client_N = client_N.to(self.trainer.device)
        return {
            kind: Points(self._features(weights_of, start, replies, rows), client_N, np.concatenate(rows))
            for kind, (weights_of, start) in kinds.items()
        }

    def _features(
        self, weights_of: WeightsOf, start: Broadcast, replies: Sequence[Reply], rows: Sequence[np.ndarray]
    ) -> Tensor:
        """The features [N, D] of every client's rows, under its own weights of a kind."""

        def of_client(i: int) -> Tensor:
            return self.lens.test_features(rows[i], replies[i].client, weights_of(replies[i], start), start)

        return torch.cat(self.lens.each(of_client, range(len(rows))))
