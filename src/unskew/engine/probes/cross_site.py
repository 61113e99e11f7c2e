"""Every client's trained model on every other client's test rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.engine.probes.probe import Probe, Seen
from unskew.measures.cross_site import off_diagonal_mean


class CrossSite(Probe):
    """After the last round, a score for every ordered pair of clients, and the mean over pairs of different ones."""

    MOST = 20

    def refuse(self) -> str | None:
        clients = len(self.lens.scoring.clients)
        if clients < 2:
            return "fewer than two clients have test rows"
        return None if clients <= self.MOST else f"{clients:,} clients make too many pairs; at most {self.MOST} clients"

    def values(self, seen: Seen) -> dict[str, float]:
        if not seen.last:
            return {}
        ids, score_KK = self.found = self._scores(seen)
        names = [self.lens.names[k] for k in ids]
        pairs = {
            f"cross_site/{a}>{b}": float(score_KK[i, j])
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        }
        return {"cross_site": off_diagonal_mean(score_KK), **pairs}

    def picture(self, seen: Seen) -> dict[str, Any]:
        ids, score_KK = self.found
        rows = [[None if np.isnan(v) else round(float(v), 6) for v in row] for row in score_KK]
        return {"names": [self.lens.names[k] for k in ids], "score": rows, "metric": self.fed.task.main_score}

    def _scores(self, seen: Seen) -> tuple[list[int], np.ndarray]:
        """(clients, [K, K]): row i the model of client i, NaN where it did not train in the last round."""
        scoring, ids = self.lens.scoring, self.lens.scoring.clients
        replies = {r.client: r for r in seen.replies}
        pairs = [(i, j) for i, k in enumerate(ids) if k in replies for j in range(len(ids))]

        def score(pair: tuple[int, int]) -> float:
            reply, k = replies[ids[pair[0]]], ids[pair[1]]
            return scoring.score_at(k, seen.sent, self.lens.local(reply, seen.sent))

        score_KK = np.full((len(ids), len(ids)), np.nan)
        for pair, value in zip(pairs, self.lens.each(score, pairs)):
            score_KK[pair] = value
        return ids, score_KK
