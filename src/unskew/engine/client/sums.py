"""What stands for a client's samples where every sample has a proof of its own: sums with noise, drawn at the client.

A hook that was allowed beside such a proof sees a client without samples, whose `total` measures one sample at a time, has
the protecting Part bound what comes of it as one vector, adds up, and adds noise to every number of the sum. The noise of a
round is named after who asks and for the how-manieth sum, so no two sums have the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import SURE, Client, Measure, changed
from unskew.core.trees import Tree, flat, nested
from unskew.core.values import Batch, Share, noisy
from unskew.engine.client.clients import Clients
from unskew.engine.client.hidden import Hidden
from unskew.engine.client.kernels import Kernels, within
from unskew.engine.client.transfer import on_device
from unskew.engine.client.values import Start
from unskew.errors import UsageError

AT_ONCE = 1 << 24
"""Numbers of single samples that are in memory at a time, about."""
ROWS = 256
"""Samples that are measured side by side, at most."""


@dataclass(frozen=True)
class Release:
    """Who asks for sums. part: its name. place: where: "finish", or a trip by its place among the Part's. allowed: how many
    sums it says that it asks for, which the account has counted."""

    part: str
    place: str
    allowed: int


def without_samples(clients: Clients, c: Client) -> Client:
    """The client as hooks may see it beside a Part that protects samples: no samples, no class counts (E108)."""
    if clients.apart is None:
        return c
    by = clients.apart.name

    def refuse(*_: object) -> NoReturn:
        raise UsageError("E108", f"a hook reads the client's samples, which no noise of '{by}' covers; take it out.")

    return changed(c, counts=Hidden(by), data=refuse, chosen=refuse)


def with_sums(clients: Clients, c: Client, k: int, start: Start, release: Release) -> Client:
    """Client k as a hook sees it that has declared to read sums alone. c: its trees and weights; start: what it was sent."""
    assert clients.apart is not None
    blind = without_samples(clients, c)
    return changed(blind, summed=NoisySums(clients, blind, k, start, release), floor=SURE * clients.apart.sum_noise)


@dataclass
class NoisySums:
    """Called as `Client.total` is; at most as often as declared. k: the client. asked: how often it was called."""

    clients: Clients
    c: Client
    k: int
    start: Start
    release: Release
    asked: int = field(default=0)

    def __call__(self, measure: Measure, raw: bool) -> dict[str, Tensor]:
        """Raises UsageError (E108) for a sum more than was declared, which epsilon would not count."""
        part, place, allowed = self.release.part, self.release.place, self.release.allowed
        if self.asked >= allowed:
            text = f"'{part}' asks for more sums over samples than the {allowed} of '{place}' that it declares"
            raise UsageError("E108", f"{text}, and epsilon counts no others; let it declare all of them.")
        turn, self.asked = self.asked, self.asked + 1
        sums, apart = self._sums(measure, raw), self.clients.apart
        assert apart is not None
        normal = self.clients.chance.normal(self.start.t, part)

        def drawn(name: str, total: Tensor) -> Tensor:
            return normal(tuple(total.shape), f"sums {self.k} {place} {turn} {name}")

        return {name: noisy(t, apart.sum_noise, drawn(name, t)).to(torch.float32) for name, t in sums.items()}

    def _sums(self, measure: Measure, raw: bool) -> dict[str, Tensor]:
        """Without noise, float64."""
        clients, apart, sums = self.clients, self.clients.apart, dict[str, Tensor]()
        assert apart is not None
        kernels, samples, whole = Kernels(folded=True), clients.samples, self.start.to(self.k)

        def of_one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            seen = x[None] if raw else clients.prepared(x[None], self.c, whole)
            measured = measure(Batch(seen, y[None], torch.ones(1, device=x.device)))
            return apart.sample_sum(measured, self.c)

        with torch.no_grad(), within(clients.net, kernels), kernels.differentiating():
            for rows in self._pieces(of_one):
                index = on_device(rows, clients.device)
                for name, of_each in torch.func.vmap(of_one)(samples.x[index], samples.y[index]).items():
                    total = of_each.double().sum(0)
                    sums[name] = sums[name] + total if name in sums else total
        return sums

    def _pieces(self, of_one: Any) -> Iterator[np.ndarray]:
        """The client's rows in pieces, of which the vectors of all samples fit into memory: first one, which tells their size."""
        rows, samples = self.clients.samples.rows[self.k], self.clients.samples
        first = on_device(rows[:1], self.clients.device)
        one = torch.func.vmap(of_one)(samples.x[first], samples.y[first])
        many = max(1, min(ROWS, AT_ONCE // max(1, sum(t.numel() for t in one.values()))))
        for begin in range(0, len(rows), many):
            yield rows[begin : begin + many]


def within_bounds(tree: Tree, declared: Mapping[str, Share]) -> Tree:
    """What was computed from noisy sums, cut to the bounds that its Shares declare: noise knows of none."""
    shared = flat(tree)
    return nested({path: _bounded(t, declared[path]) if path in declared else t for path, t in shared.items()})


def _bounded(t: Tensor, share: Share) -> Tensor:
    cut = t.clamp(share.low, share.high) if t.dtype.is_floating_point else t
    norm = cut.double().norm()
    return cut if share.norm is None or norm <= share.norm else (cut * (share.norm / norm) * (1 - 1e-6)).to(cut.dtype)
