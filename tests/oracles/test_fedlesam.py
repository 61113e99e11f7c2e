"""FedLESAM (Fan et al., ICML 2024, eq. 4 and algorithm 1).

    e = rho (w_old - w_t) / ||w_old - w_t||;    w <- w - lr grad F(w + e)
w_old is what the client received in its last round, or (official code) the global model of the round before
for all.
"""

import torch

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class FedLESAM(FedAvg):
    part = "fedlesam"
    rho = 0.05
    since = "client"

    def begin(self) -> None:
        now = {n: self.w[n] for n in self.learned}
        self.slice = {"now": now, "old": now} if self.since == "round" else {}

    def arrive(self, c: Client) -> None:
        here = {n: c.start[n] for n in self.learned}
        old = self.slice["old"] if self.since == "round" else self.private.get(c.k, {"old": here})["old"]
        length = sum(((old[n] - here[n]) ** 2).sum() for n in here) ** 0.5
        self.e = {n: self.rho * (old[n] - here[n]) / length if length else 0 * here[n] for n in here}

    def batch(self, c: Client, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            for n, p in c.parameters.items():
                p += self.e[n]
        return x, y

    def gradient(self, c: Client) -> None:
        for n, p in c.parameters.items():
            p -= self.e[n]

    def leave(self, c: Client) -> Tree:
        if self.since == "client":
            self.private[c.k] = {"old": {n: c.start[n] for n in self.learned}}
        return {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        if self.since == "round":
            self.slice = {"old": self.slice["now"], "now": {n: self.w[n] for n in self.learned}}


@on_both_models
def test_fedlesam(case: Case) -> None:
    agree(case, FedLESAM, rho=0.5)


def test_since_the_last_round() -> None:
    agree(Case(), FedLESAM, rho=0.5, since="round")
