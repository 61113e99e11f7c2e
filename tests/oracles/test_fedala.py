"""FedALA (Zhang et al., AAAI 2023, eq. 4 and 5): th = v + (w - v) W for the last blocks, W <- clip(W - eta
grad (w - v)) first.

v is what the client trained last. W begins at 1 and goes on from round to round. A client that is new has v =
w.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy, loaded
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client


class FedALA(FedAvg):
    part = "fedala"
    eta = 1.0
    first = 10
    blocks = 1

    @property
    def mixed(self) -> list[str]:
        """Parameters of the last blocks, of which the head is the last."""
        last = [name for name, _ in self.module.named_children()][-self.blocks :]
        return [n for n, _ in self.module.named_parameters() if n.partition(".")[0] in last]

    def arrive(self, c: Client) -> None:
        self.private.setdefault(
            c.k, {"w": dict(self.w), "W": {n: torch.ones_like(self.w[n]) for n in self.mixed}, "rounds": 0}
        )
        self.private[c.k]["W"] = self.fitted(c.k)
        loaded(c.model, self.begun(c.k, self.private[c.k]["W"]))

    def begun(self, k: int, W: Weights) -> Weights:
        v = self.private[k]["w"]
        return self.w | {n: v[n] + (self.w[n] - v[n]) * W[n] for n in self.mixed}

    def fitted(self, k: int) -> Weights:
        W, v = self.private[k]["W"], self.private[k]["w"]
        for _ in range(self.first if self.private[k]["rounds"] == 1 else 1):
            for rows in self.given.rows(k).split(self.case.batch):
                model = self.model_with(self.begun(k, W)).eval()
                cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                g = {n: p.grad for n, p in model.named_parameters()}
                W = {n: (W[n] - self.eta * g[n] * (self.w[n] - v[n])).clamp(0, 1) for n in self.mixed}  # type: ignore[operator]
        return W

    def leave(self, c: Client) -> Tree:
        self.private[c.k] |= {"w": c.weights, "rounds": self.private[c.k]["rounds"] + 1}
        return {}

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.begun(k, self.fitted(k)) for k in self.private}
        return super().answers() | {k: self.evaluated(w, self.tests_of(k))[0] for k, w in own.items()}


def test_fedala() -> None:
    agree(Case("cnn", 0.9), FedALA, eta=20.0, first=2, blocks=2)
