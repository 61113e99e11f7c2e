"""FedDBE (Zhang et al., NeurIPS 2023, eq. 3 to 6): CE(head(h + m_k)) + kappa / 2 |mean h - g|^2 / D, from
round 2 on.

g is the mean feature of all clients' samples by the model after round 1. m_k begins at 0, is trained and
stays.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case
from tests.oracles.values import Client, Pass


class FedDBE(FedAvg):
    part = "feddbe"
    kappa = 1.0

    def begin(self) -> None:
        D = self.evaluated(self.w, self.x_test)[1].shape[1]
        self.slice = {"g": torch.zeros(D), "on": torch.zeros(())}

    def keeps(self, name: str) -> bool:
        return name == "feddbe.m"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        if not self.slice["on"]:
            return super().loss(c, seen) + 0 * c.extra["feddbe.m"].sum()
        z = c.model.head(seen.h + c.extra["feddbe.m"])  # type: ignore[operator]
        return cross_entropy(z, seen.y) + self.kappa / 2 * (seen.h.mean(0) - self.slice["g"]).pow(2).mean()

    def exchange(self, cohort: list[int]) -> None:
        if self.t == 1:
            rows = torch.cat([self.given.rows(k) for k in range(self.clients)])
            self.slice = {"g": self.evaluated(self.w, self.x[rows])[1].mean(0), "on": torch.ones(())}

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        h = self.evaluated(self.w, self.tests_of(k))[1] + self.kept[k]["feddbe.m"]
        return h @ self.w["head.weight"].T + self.w["head.bias"]


def test_feddbe() -> None:
    agree(Case("cnn", 0.9), FedDBE, kappa=5.0)
