"""Class shares of the shared pool, of clients' own data, and of what training sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.core.values import Batch
from unskew.engine.client.noise import draw
from unskew.engine.client.schedule import work_of
from unskew.engine.client.values import Start
from unskew.engine.probes.probe import Lens, Probe, Seen, mean
from unskew.measures.histograms import class_shares, distance


class Histograms(Probe):
    """How far the pool, the clients' own classes and what training sees are from the federation's class shares."""

    SHOWN = 3

    def __init__(self, lens: Lens):
        super().__init__(lens)
        self.pools = self._pools()

    def refuse(self) -> str | None:
        return None if self.pools else "its clients are sent no labelled pool; FLea, FedMix or FedData have one"

    def _pools(self) -> dict[Part, str]:
        """Parts that broadcast labels or label distributions, and the leaf that holds them."""
        w, found = self.fed.net.weights(), {}
        for part in self.of.method.parts:
            leaves = set(part.server_init(w, self.fed)) - set(part.keeps_at_server)
            if held := leaves & {"labels", "y"}:
                found[part] = min(held)
        return found

    def values(self, seen: Seen) -> dict[str, float]:
        everybody_C = class_shares(torch.as_tensor(self.of.samples.counts_KC), self.fed.classes)
        pool_C, local, mixed = self._shares(seen, seen.some)
        return {
            "histogram_pool": distance(pool_C, everybody_C) if float(pool_C.sum()) else float("nan"),
            "histogram_local": mean([distance(p, everybody_C) for p in local]),
            "histogram_mixed": mean([distance(p, everybody_C) for p in mixed]),
        }

    def picture(self, seen: Seen) -> dict[str, Any]:
        shown = seen.replies[: self.SHOWN]
        pool_C, local, mixed = self._shares(seen, shown)
        names = [self.lens.names[r.client] if r.client < len(self.lens.names) else str(r.client) for r in shown]
        return {
            "buffer": _plain(pool_C),
            "local": [*map(_plain, local)],
            "mixed": [*map(_plain, mixed)],
            "names": names,
        }

    def _shares(self, seen: Seen, replies: Sequence[Reply]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        C = self.fed.classes
        pools = [class_shares(seen.sent.down[p.name][leaf].cpu(), C) for p, leaf in self.pools.items()]  # type: ignore[union-attr]
        local = [class_shares(torch.as_tensor(self.of.samples.counts_KC[r.client])[None], C) for r in replies]
        mixed = self.lens.each(lambda r: class_shares(self._as_trained(r, seen.sent)[None], C), replies)
        return torch.stack(pools).mean(0), local, mixed

    def _as_trained(self, reply: Reply, sent: Start) -> Tensor:
        """[C] the labels of the client's first local epoch, summed, after the pool's Parts have mixed theirs in."""
        of, k, recipe, fed = self.of, reply.client, self.of.training.recipe, self.fed
        work, order = work_of(k, int(fed.sizes[k]), recipe), of.orders(k, sent.t)[0]
        parts = [p for p in of.method.parts if p in self.pools]
        w = of.held_weights(sent, reply.private)
        clients = {p: of.client(k, sent, p.name, w, reply.private) for p in parts}
        drawn = {
            p: {
                name: (law, draw(law, work.steps(recipe.epochs), recipe.batch, fed.seed, sent.t, k, p.name, name))
                for name, law in p.noise(fed, sent.down.get(p.name, {})).items()
            }
            for p in parts
        }
        total_C = torch.zeros(fed.classes)
        for s in range(work.steps(1)):
            rows = order[s * recipe.batch : s * recipe.batch + (recipe.batch if s < work.full else work.short)]
            index = torch.as_tensor(rows, device=of.device)
            b = Batch(of.samples.x[index], of.samples.y[index], torch.ones(len(rows), device=of.device))
            at = {
                p: {n: (v[s][: len(rows)] if law.per_sample else v[s]).to(of.device) for n, (law, v) in d.items()}
                for p, d in drawn.items()
            }
            for p in parts:
                b = p.batch(b, replace(clients[p], noise=at[p]))
            for p in parts:
                for cut in (c for tap in p.taps for c in fed.net.cuts(tap)):
                    h = torch.zeros(len(rows), *fed.net.shape_at(cut), device=of.device)
                    _, b = p.tap(cut, h, b, replace(clients[p], noise=at[p]))
            total_C += b.y.sum(0).cpu()
        return total_C


def _plain(shares_C: Tensor) -> list[float]:
    return [round(v, 4) for v in shares_C.tolist()]
