"""Class shares of the shared pool, of clients' data and of training, compared with the federation's (FLea,
Fig. 7).

distance = 1/2 sum_c |p_c - q_c|        total variation: 0 for equal shares, 1 for no class in common
Letters: C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unskew.core.client import Batch, Client
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.round.chunks import work_of
from unskew.round.clients import Broadcast
from unskew.round.noise import draw
from unskew.round.probes import Measurement, Probe, RoundEnd, RunInspector, mean


def class_shares(y: Tensor, classes: int) -> Tensor:
    """Class shares [C] of labels [N], of class distributions [N, C], or of counts [1, C]; zeros if there are
    none."""
    counts_C = torch.bincount(y, minlength=classes) if y.dim() == 1 else y.sum(0)
    counts_C = counts_C.to(torch.float64)
    return counts_C / counts_C.sum().clamp(min=1e-12)


def distance(p_C: Tensor, q_C: Tensor) -> float:
    """The total variation distance of two vectors of class shares, in [0, 1]."""
    return float((p_C - q_C).abs().sum() / 2)


SHOWN = 3
"""Number of clients in the picture."""


class Histograms(Probe):
    """Distances of the pool, the clients' classes and the classes in training from the federation's class
    shares."""

    def __init__(self, lens: RunInspector):
        super().__init__(lens)
        self.pools = self._pools()

    def refuse(self) -> str | None:
        return (
            None if self.pools else "its clients are sent no labelled pool; FLea, FedMix or FedData have one"
        )

    def _pools(self) -> dict[Part, str]:
        """Maps each Part that broadcasts labels or label distributions to the leaf that holds them."""
        w, pools = self.fed.net.weights(), {}
        for part in self.trainer.method.parts:
            leaves = set(part.server_init(w, self.fed)) - set(part.keeps_at_server)
            if labels := leaves & {"labels", "y"}:
                pools[part] = min(labels)
        return pools

    def measure(self, end: RoundEnd) -> Measurement:
        C, counts_KC = self.fed.classes, torch.as_tensor(self.trainer.samples.counts_KC)
        pools = [class_shares(end.sent.down[p.name][leaf].cpu(), C) for p, leaf in self.pools.items()]
        pool_C = torch.stack(pools).mean(0)
        local = [class_shares(counts_KC[r.client][None], C) for r in end.some_replies]
        mixed = self.lens.each(
            lambda r: class_shares(self._as_trained(r, end.sent)[None], C), end.some_replies
        )
        everybody_C = class_shares(counts_KC, C)
        values = {
            "histogram_pool": distance(pool_C, everybody_C) if float(pool_C.sum()) else float("nan"),
            "histogram_local": mean([distance(p, everybody_C) for p in local]),
            "histogram_mixed": mean([distance(p, everybody_C) for p in mixed]),
        }
        return Measurement(values, self._picture(end.replies, pool_C, local, mixed) if end.last else {})

    def _picture(
        self, replies: Sequence[Reply], pool_C: Tensor, local: Sequence[Tensor], mixed: Sequence[Tensor]
    ) -> dict[str, Any]:
        return {
            "buffer": _rounded(pool_C),
            "local": [_rounded(p) for p in local[:SHOWN]],
            "mixed": [_rounded(p) for p in mixed[:SHOWN]],
            "names": [self.lens.client_names[r.client] for r in replies[:SHOWN]],
        }

    def _as_trained(self, reply: Reply, sent: Broadcast) -> Tensor:
        """The summed labels [C] of the client's first local epoch, after mixing with the pool."""
        trainer, k, fed = self.trainer, reply.client, self.fed
        recipe = trainer.training.recipe_in(sent.t)
        work, order = work_of(k, int(fed.sizes[k]), recipe), trainer.orders(k, sent.t)[0]
        w = trainer.held_weights(sent, reply.private)
        clients = {p: trainer.client(k, sent, p.name, w, reply.private) for p in self.pools}
        noise = {p: self._noise(p, k, work.steps(recipe.epochs), sent) for p in self.pools}
        total_C = torch.zeros(fed.classes)
        for s in range(work.steps(1)):
            rows = order[
                s * recipe.batch : s * recipe.batch + (recipe.batch if s < work.full else work.short)
            ]
            index = torch.as_tensor(rows, device=trainer.device)
            b = Batch(
                trainer.samples.x[index],
                trainer.samples.y[index],
                torch.ones(len(rows), device=trainer.device),
            )
            now = {
                p: {
                    n: (drawn[s][: len(rows)] if per_sample else drawn[s]).to(trainer.device)
                    for n, (per_sample, drawn) in noise[p].items()
                }
                for p in self.pools
            }
            b = self._mixed(b, {p: replace(clients[p], noise=now[p]) for p in self.pools})
            total_C += b.y.sum(0).cpu()
        return total_C

    def _noise(self, part: Part, k: int, steps: int, sent: Broadcast) -> dict[str, tuple[bool, Tensor]]:
        """By name, (whether the noise is per sample, client k's noise in all steps of the round)."""
        batch, seed = self.trainer.training.recipe.batch, self.fed.seed
        laws = part.noise(self.fed, sent.down.get(part.name, {}))
        return {
            name: (law.per_sample, draw(law, steps, batch, seed, sent.t, k, part.name, name))
            for name, law in laws.items()
        }

    def _mixed(self, b: Batch, clients: dict[Part, Client]) -> Batch:
        """The batch after the hooks `batch` and `tap`; activations are zeros, because only the labels are
        used."""
        for p, c in clients.items():
            b = p.batch(b, c)
        for p, c in clients.items():
            for cut in (cut for tap in p.taps for cut in self.fed.net.cuts(tap)):
                h = torch.zeros(len(b.y), *self.fed.net.shape_at(cut), device=b.y.device)
                _, b = p.tap(cut, h, b, c)
        return b


def _rounded(shares_C: Tensor) -> list[float]:
    return [round(v, 4) for v in shares_C.tolist()]
