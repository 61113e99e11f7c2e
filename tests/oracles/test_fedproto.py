"""FedProto (Tan et al., AAAI 2022, eq. 3, 6 and 7), L2 as the mean over dimensions as in the official code.

    C_k^(j) = mean of f(x) over client k's samples of class j, by the trained model in evaluation mode
    C^(j) = sum_k n_kj / n_j C_k^(j);    loss = l_sup + lam mean_i ||f(x_i) - C^(y_i)||^2 / D
A class without a global prototype adds nothing. As printed, no weights are sent, and the class with the
nearest prototype is predicted; with `aggregate_weights` weights are averaged and the head predicts.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class FedProto(FedAvg):
    part = "fedproto"
    lam = 1.0
    aggregate_weights = True
    D = 7

    def begin(self) -> None:
        self.slice = {
            "prototypes": torch.zeros(CLASSES, self.D).double(),
            "known": torch.zeros(CLASSES).double(),
        }

    def keeps(self, name: str) -> bool:
        return not self.aggregate_weights

    def loss(self, c: Client, seen: Pass) -> Tensor:
        pull = torch.zeros(()).double()
        for h, j in zip(seen.h, seen.y.argmax(1).tolist()):
            if self.slice["known"][j]:
                pull = pull + ((h - self.slice["prototypes"][j]) ** 2).mean()
        return super().loss(c, seen) + self.lam * pull / len(seen.h)

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        h, label = self.evaluated(c.weights, self.x[rows])[1], self.y[rows].argmax(1)
        return {"means": {j: (h[label == j].mean(0), int((label == j).sum())) for j in set(label.tolist())}}

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.begin()
        for j in range(CLASSES):
            means = [r.shared["means"][j] for r in replies if j in r.shared["means"]]
            if means:
                n_j = sum(n for _, n in means)
                self.slice["prototypes"][j] = sum(n / n_j * mean for mean, n in means)
                self.slice["known"][j] = 1

    def answers(self) -> dict[int, Tensor]:
        if self.aggregate_weights:
            return super().answers()
        return {k: self.nearness(self.evaluated(kept, self.tests_of(k))[1]) for k, kept in self.kept.items()}

    def nearness(self, h_BD: Tensor) -> Tensor:
        """Minus the distance to every known prototype, as logits."""
        z_BC = torch.full((len(h_BD), CLASSES), -torch.inf).double()
        for j in range(CLASSES):
            if self.slice["known"][j]:
                z_BC[:, j] = -(h_BD - self.slice["prototypes"][j]).norm(dim=1)
        return z_BC


@everywhere
def test_fedproto(case: Case) -> None:
    agree(case, FedProto, lam=2.0)


@everywhere
def test_models_of_their_own(case: Case) -> None:
    agree(case, FedProto, aggregate_weights=False)


def test_classes_without_a_prototype() -> None:
    """Nobody who answers has class 3 in round 1, or class 0 in round 2."""
    few = replace(Case("cnn"), attendance=((2,), (0, 4), (1, 2, 4)))
    agree(few, FedProto)
    agree(few, FedProto, aggregate_weights=False)
