"""Clients' test features in the plane, under local and global models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.replies import Reply
from unskew.engine.client.values import Start
from unskew.engine.probes.probe import Probe, Seen, Weigh
from unskew.measures.separation import davies_bouldin
from unskew.measures.tsne import plane


class TSNE(Probe):
    """After the last round: points of clients' test rows, and how well the *clients* are told apart by their features."""

    CLIENTS, ROWS = 10, 150

    def refuse(self) -> str | None:
        if self.fed.task.name != "classification":
            return "its picture is of samples of one class each, and here every pixel has a class"
        return None if len(self.lens.scoring.clients) > 1 else "fewer than two clients have test rows"

    def values(self, seen: Seen) -> dict[str, float]:
        if not seen.last:
            return {}
        self.found = self._points(seen)
        return {f"sites_{kind}": davies_bouldin(x_ND, ids_N) for kind, (x_ND, ids_N, _) in self.found.items()}

    def picture(self, seen: Seen) -> dict[str, Any]:
        found: dict[str, Any] = {"names": list(self.lens.names)}
        for kind, (x_ND, ids_N, rows_N) in self.found.items():
            xy_N2 = plane(x_ND.cpu().numpy(), self.fed.seed)
            labels = self.lens.scoring.y[rows_N].tolist()
            found[kind] = {"client": ids_N.tolist(), "label": labels, "xy": np.round(xy_N2, 2).tolist()}
        return found

    def _points(self, seen: Seen) -> dict[str, tuple[Tensor, Tensor, np.ndarray]]:
        """(features, client of each, row of each) under the clients' local models, and under the global one."""
        lens = self.lens
        replies = [r for r in seen.replies if len(lens.scoring.test[r.client])][: self.CLIENTS]
        if len(replies) < 2:
            return {}
        rows = [lens.chosen(lens.scoring.test[r.client], self.ROWS, "tsne", r.client) for r in replies]
        ids_N = torch.cat([torch.full((len(n),), r.client) for r, n in zip(replies, rows)])
        kinds = {"local": (lens.local, seen.sent)} | ({"global": (lens.received, seen.now)} if self.of.sent else {})
        owner_N = ids_N.to(self.of.device)
        return {
            kind: (self._features(weights, start, replies, rows), owner_N, np.concatenate(rows))
            for kind, (weights, start) in kinds.items()
        }

    def _features(self, weights: Weigh, start: Start, replies: Sequence[Reply], rows: Sequence[np.ndarray]) -> Tensor:
        """[N, D] of every client's rows, under its own weights of a kind."""

        def of_client(i: int) -> Tensor:
            return self.lens.unseen(rows[i], replies[i].client, weights(replies[i], start), start)

        return torch.cat(self.lens.each(of_client, range(len(rows))))
