"""FD (Jeong et al. 2018, algorithm 1): per class, the mean output of the other clients is the teacher.

p_k^(c) = mean softmax output over client k's samples of class c, by its trained model
q_k^(c) = mean of p_j^(c) over the other clients that answered the last round and have class c
loss = CE(z, y) + lam mean_i CE(z_i, q_k^(y_i));    nothing is added where nobody else has the class
"""

from typing import Any

import torch
from torch import Tensor

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class FD(FedAvg):
    part = "fd"
    lam = 1.0
    aggregate_weights = False

    def begin(self) -> None:
        self.last: dict[int, dict[int, Tensor]] = {}
        self.slice = self.packed({}, 0)

    def packed(self, outputs: dict[int, dict[int, Tensor]], t: int) -> dict[str, Any]:
        p, has = torch.zeros(CLASSES, CLASSES).double(), torch.zeros(CLASSES).double()
        for by_class in outputs.values():
            for j, mean in by_class.items():
                p[j], has[j] = p[j] + mean, has[j] + 1
        return {"p": p, "has": has, "t": torch.tensor(float(t))}

    def keeps(self, name: str) -> bool:
        return not self.aggregate_weights

    def loss(self, c: Client, seen: Pass) -> Tensor:
        taught = torch.zeros(()).double()
        for z, j in zip(seen.z, seen.y.argmax(1).tolist()):
            others = [by_class[j] for k, by_class in self.last.items() if k != c.k and j in by_class]
            if others:
                taught = taught - (sum(others) / len(others) * z.log_softmax(0)).sum()
        return super().loss(c, seen) + self.lam * taught / len(seen.z)

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        p, label = self.evaluated(c.weights, self.x[rows])[0].softmax(1), self.y[rows].argmax(1)
        means = {j: p[label == j].mean(0) for j in set(label.tolist())}
        self.private[c.k] = self.packed({c.k: means}, self.t)
        return {"means": means}

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.last = {r.k: r.shared["means"] for r in replies}
        self.slice = self.packed(self.last, self.t)

    def answers(self) -> dict[int, Tensor]:
        if self.aggregate_weights:
            return super().answers()
        return {k: self.evaluated(kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@on_both_models
def test_fd(case: Case) -> None:
    agree(case, FD, lam=2.0)


def test_with_merged_weights() -> None:
    agree(Case(), FD, aggregate_weights=True)
