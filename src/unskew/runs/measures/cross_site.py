"""Cross-site generalisation (FedRDN, Yan et al., CVPR 2025, Table 3): every client's model on the others'
test rows.

score_ij: the model of site i, after its last local training and before merging, on the test rows of site j,
with inputs prepared by the statistics of site j. The paper does not specify the local model or the source of
the statistics; this is our reading. Letters: K sites.
"""

from __future__ import annotations

import numpy as np

from unskew.round.probes import Measurement, Probe, RoundEnd
from unskew.scores import kind


def off_diagonal_mean(score_KK: np.ndarray) -> float:
    """The mean of score_KK [K, K] over pairs of different sites, without NaN (no model, no test rows); NaN if
    no pair is left."""
    other = ~np.eye(*score_KK.shape, dtype=bool)
    values = score_KK[other & ~np.isnan(score_KK)]
    return float(values.mean()) if len(values) else float("nan")


MOST = 20
"""Maximum number of clients; more clients have too many pairs."""


class CrossSite(Probe):
    """After the last round: a score for every ordered pair of clients, and the mean over pairs of different
    clients."""

    def refuse(self) -> str | None:
        if not kind(self.fed.task.main_score).share:
            return (
                f"its pictures show shares, and {kind(self.fed.task.main_score).title} is in the target's own"
                " unit"
            )
        clients = len(self.lens.scoring.clients)
        if clients < 2:
            return "fewer than two clients have test rows"
        return None if clients <= MOST else f"{clients:,} clients make too many pairs; at most {MOST} clients"

    def measure(self, end: RoundEnd) -> Measurement:
        if not end.last:
            return Measurement()
        score_KK = self._scores(end)
        names = [self.lens.client_names[k] for k in self.lens.scoring.clients]
        pairs = {
            f"cross_site/{a}>{b}": float(score_KK[i, j])
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        }
        rows = [[None if np.isnan(v) else round(float(v), 6) for v in row] for row in score_KK]
        return Measurement(
            {"cross_site": off_diagonal_mean(score_KK), **pairs},
            {"names": names, "score": rows, "metric": self.fed.task.main_score},
        )

    def _scores(self, end: RoundEnd) -> np.ndarray:
        """Scores [K, K] over the clients with test rows; row i belongs to the i-th client's model, NaN if it
        did not train in this round."""
        scoring, ids = self.lens.scoring, self.lens.scoring.clients
        replies = {r.client: r for r in end.replies}
        pairs = [(i, j) for i, k in enumerate(ids) if k in replies for j in range(len(ids))]

        def score(pair: tuple[int, int]) -> float:
            reply, k = replies[ids[pair[0]]], ids[pair[1]]
            return scoring.score_at(k, end.sent, self.lens.trained_weights(reply, end.sent))

        score_KK = np.full((len(ids), len(ids)), np.nan)
        for pair, value in zip(pairs, self.lens.each(score, pairs)):
            score_KK[pair] = value
        return score_KK
