"""How well classes are told apart in the features: Davies-Bouldin indices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unskew.core.replies import Reply
from unskew.engine.client.values import Start
from unskew.engine.probes.probe import MOST_ROWS, Probe, Seen, Weigh, mean
from unskew.measures.separation import davies_bouldin


class Separation(Probe):
    """Four indices: training and test rows, under local models (mean over clients) and under the global one."""

    def refuse(self) -> str | None:
        if self.fed.task.name != "classification":
            return "it tells classes of samples apart, and here every pixel has a class"
        return None if self.fed.classes > 1 else "there is one class"

    def values(self, seen: Seen) -> dict[str, float]:
        lens, rows = self.lens, self._rows()
        y_N = lens.unseen_labels(rows)

        def of_client(reply: Reply, weights: Weigh, start: Start) -> tuple[float, float]:
            k, w = reply.client, weights(reply, start)
            test = davies_bouldin(lens.unseen(rows, k, w, start), y_N) if len(rows) else float("nan")
            return davies_bouldin(*lens.train(k, w, start)), test

        local = lens.each(lambda r: of_client(r, lens.local, seen.sent), seen.some)
        found = {"train_local": mean([a for a, _ in local]), "test_local": mean([b for _, b in local])}
        if self.of.sent and not self.of.kept:
            found |= lens.each(lambda _: self._global(seen, rows, y_N), [None])[0]
        elif self.of.sent:  # every client holds a global model of its own
            own = lens.each(lambda r: of_client(r, lens.received, seen.now), seen.some)
            found |= {"train_global": mean([a for a, _ in own]), "test_global": mean([b for _, b in own])}
        return {f"separation_{n}": v for n, v in found.items()}

    def _rows(self) -> np.ndarray:
        return self.lens.chosen(np.arange(len(self.lens.scoring.y)), MOST_ROWS, "test rows")

    def _global(self, seen: Seen, rows: np.ndarray, y_N: Tensor) -> dict[str, float]:
        lens, w, found = self.lens, seen.now.weights, {}
        if seen.some:
            each = max(2, MOST_ROWS // len(seen.some))
            parts = [lens.train(r.client, w, seen.now, each) for r in seen.some]
            found["train_global"] = davies_bouldin(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
        if len(rows) and self.fed.natural and lens.scoring.own_inputs:
            own = [(k, lens.chosen(lens.scoring.test[k], MOST_ROWS, k)) for k in lens.scoring.clients]
            x_ND = torch.cat([lens.unseen(mine, k, w, seen.now) for k, mine in own])
            found["test_global"] = davies_bouldin(x_ND, lens.unseen_labels(np.concatenate([mine for _, mine in own])))
        elif len(rows):
            found["test_global"] = davies_bouldin(lens.unseen(rows, -1, w, seen.now), y_N)
        return found
