"""Pairs: a method that decides where weights live, and one that changes steps or merge, written once each.

Families: weights that clients send (FedETF's scale too), keep (FedPer, FedRep), train as a model of their own
(Ditto, APFL), are sent one by one (IFCA, pFedLA), or encode (Top-k).
Beside each a Part acts on what it can see: the model's trained weights (frozen ones and a client's own model
left out); Parts that speak of received or sent weights leave out those that stay, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.oracles.agreement import agree
from tests.oracles.plain import Case, Client, FedAvg, Pass, Reply, Tree, Weights, named_tensors
from tests.oracles.test_classifiers import FedETF
from tests.oracles.test_compression import TopK
from tests.oracles.test_divided_models import FedPer, FedRep
from tests.oracles.test_mixtures import IFCA
from tests.oracles.test_mixtures import Oracle as PFedLA
from tests.oracles.test_own_models import APFL, Ditto
from tests.samples import EVERYTHING, turn

FAMILIES: dict[type[FedAvg], dict[str, Any]] = {
    FedETF: {"gamma": 0.5},
    FedPer: {},
    FedRep: {"head": 0.6},
    Ditto: {"lam": 0.5},
    APFL: {"alpha": 0.3},
    IFCA: {},
    PFedLA: {"rate": 0.1},
    TopK: {"share": 0.1},
}


class Beside(FedAvg):
    """The second Part of a pair, with a state of its own at the server and at clients."""

    name = ""

    def __init__(self, *given: Any, **settings: Any):
        super().__init__(*given, **settings)
        self.own_slice: Tree = {}
        self.own_private: dict[int, Tree] = {}

    def slices(self) -> Tree:
        return super().slices() | {self.name: self.own_slice}

    def held(self, k: int) -> Tree:
        return super().held(k) | {self.name: self.own_private.get(k, {})}

    def seen(self, c: Client) -> dict[str, nn.Parameter]:
        """The weights that the second Part sees: not a model of the client's own, nor what nobody trains."""
        visible = {n: p for n, p in c.parameters.items() if n not in c.extra or not self.keeps(n)}
        return {n: p for n, p in visible.items() if not self.freezes(n)}


class FedProx(Beside):
    """mu / 2 ||w - w_t||^2, over the weights that were received."""

    name, beside = "fedprox", "+fedprox(mu=0.3)"

    def loss(self, c: Client, seen: Pass) -> torch.Tensor:
        far = sum(((c.parameters[n] - c.start[n]) ** 2).sum() for n in self.learned)
        return super().loss(c, seen) + 0.15 * far


class FedSAM(Beside):
    """grad F(w + rho g / ||g||) in place of g = grad F(w); what it does not see keeps its gradient at w."""

    name, beside = "fedsam", "+fedsam(rho=0.5)"

    def ascent(self, c: Client) -> Weights:
        """e, from the gradients at w."""
        g = {n: p.grad for n, p in self.seen(c).items() if p.grad is not None}
        norm = torch.cat([t.flatten() for t in g.values()]).norm().clamp(min=1e-12)
        return {n: 0.5 * t / norm for n, t in g.items()}

    def gradient(self, c: Client) -> None:
        super().gradient(c)
        seen, e = self.seen(c), self.ascent(c)
        first = {n: p.grad for n, p in c.parameters.items()}
        rest = {**dict(named_tensors(c.model)), **c.extra}
        before = {n: t.detach().clone() for n, t in rest.items()}
        for n, p in c.parameters.items():
            p.add_(e.get(n, 0))
            p.grad = None
        with torch.enable_grad():
            x, y = self.batch(c, self.x[c.rows], self.y[c.rows])
            self.loss(c, Pass(x, y, *self.forward(c, x))).backward()
        for n, t in rest.items():
            t.copy_(before[n])
        for n, p in c.parameters.items():
            p.grad = p.grad if n in seen else first[n]


class Scaffold(Beside):
    """g - c_k + c, over the weights that are sent."""

    name, beside, weighting = "scaffold", "+scaffold", "equal"

    def zeros(self) -> Weights:
        return {n: torch.zeros_like(self.w[n]) for n in self.learned}

    def begin(self) -> None:
        super().begin()
        self.own_slice = {"c": self.zeros()}

    def arrive(self, c: Client) -> None:
        super().arrive(c)
        self.own_private.setdefault(c.k, {"c": self.zeros()})

    def gradient(self, c: Client) -> None:
        super().gradient(c)
        for n in self.learned:
            grad = c.parameters[n].grad
            assert grad is not None
            grad += self.own_slice["c"][n] - self.own_private[c.k]["c"][n]

    def leave(self, c: Client) -> Tree:
        rho = self.case.momentum
        K = sum(sum(rho**later for later in range(c.steps - s)) for s in range(c.steps))
        y, old, total = c.weights, self.own_private[c.k]["c"], self.own_slice["c"]
        new = {n: old[n] - total[n] + (c.start[n] - y[n]) / (K * c.lr) for n in old}
        self.own_private[c.k] = {"c": new}
        return super().leave(c) | {"delta": {n: new[n] - old[n] for n in old}}

    def server(self, replies: list[Reply], old: Weights) -> None:
        super().server(replies, old)
        moved = {n: sum(r.shared["delta"][n] for r in replies) / self.clients for n in self.own_slice["c"]}
        self.own_slice = {"c": {n: c + moved[n] for n, c in self.own_slice["c"].items()}}


class FedAdam(Beside):
    """w_t + eta m / (sqrt(v) + tau) in place of the mean, over the weights that are sent."""

    name, beside = "fedadam", "+fedadam(lr=0.2, tau=0.1)"

    def begin(self) -> None:
        super().begin()
        m = {n: torch.zeros_like(self.w[n]) for n in self.learned}
        self.own_slice = {"m": m, "v": {n: t + 0.01 for n, t in m.items()}}

    def merge(self, replies: list[Reply]) -> Weights:
        mean, m, v = super().merge(replies), {}, {}
        for n in self.learned:
            delta = mean[n] - self.w[n]
            m[n] = 0.9 * self.own_slice["m"][n] + 0.1 * delta
            v[n] = 0.99 * self.own_slice["v"][n] + 0.01 * delta**2
            mean[n] = self.w[n] + 0.2 * m[n] / (torch.sqrt(v[n]) + 0.1)
        self.own_slice = {"m": m, "v": v}
        return mean


class Clip(Beside):
    """g min(1, norm / ||g||); a model of the client's own, APFL's share with it, has a norm of its own."""

    name, beside = "clip_gradients", "+clip_gradients(norm=0.4)"

    def gradient(self, c: Client) -> None:
        super().gradient(c)
        seen = self.seen(c)
        for model in (seen, {n: p for n, p in c.extra.items() if n not in seen}):
            nn.utils.clip_grad_norm_(list(model.values()), 0.4)


REFUSED = {(FedRep, Scaffold), (IFCA, Scaffold), (IFCA, FedAdam)}
PAIRS = [
    (family, other)
    for family in FAMILIES
    for other in (FedProx, FedSAM, Scaffold, FedAdam, Clip)
    if (family, other) not in REFUSED and (EVERYTHING or turn(family.__name__ + other.__name__, 2) == 0)
]


@pytest.mark.parametrize(("family", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_pairs_of_families(family: type[FedAvg], other: type[Beside]) -> None:
    case = Case("cnn" if family in (Ditto, APFL) else "mlp", 0.9)
    agree(case, type("Pair", (other, family), {}), **FAMILIES[family])
