"""FedData (Zhao et al., arXiv 1806.00582, section 4.2): raw samples of every client are shared with all
clients.

Before round 1 every client sends max(1, floor(share n_k)) samples with their labels; P is the union of them
all. Each sample of a local step is one of P with probability |P| / (|P| + n_k), else the client's own: as
many steps as without P.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Law
from tests.oracles.values import Client


class FedData(FedAvg):
    part = "feddata"
    share = 0.1

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0 or not self.share:
            return
        rows = torch.cat(
            [
                self.given.sample(k, max(1, int(self.share * len(self.given.rows(k)))), "feddata")
                for k in cohort
            ]
        )
        self.slice = {"x": self.x[rows], "labels": self.y[rows].argmax(1)}

    def arrive(self, c: Client) -> None:
        if self.slice:
            self.row = self.noise(c, "row", Law("cycle", (len(self.slice["labels"]),)))
            self.turn = self.noise(c, "turn", Law("uniform"))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y, P = x.clone(), y.clone(), len(self.slice["labels"])
        for i in range(len(x)):
            if self.turn[c.step, i] < P / (P + c.n):
                j = self.row[c.step, i]
                x[i] = self.slice["x"][j]
                y[i] = 0
                y[i, self.slice["labels"][j]] = 1
        return x, y


@everywhere
def test_feddata(case: Case) -> None:
    agree(case, FedData, share=0.4)


def test_its_defaults() -> None:
    agree(Case(), FedData)
