"""FedHKD (Chen et al., ICLR 2023, eq. 4 to 9, without noise): CE + lam mean_j |q(H^j) - Q^j| + gamma mean_i
|h_i - H^{y_i}|.

h_k^j, q_k^j: means of features and of softmax(z / T) over client k's samples of class j, sent where N_k^j /
N_k >= threshold; H^j = sum_k N_k^j / N^j h_k^j, and Q^j likewise. A class that nobody sends keeps what it
had.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class FedHKD(FedAvg):
    part = "fedhkd"
    lam = 0.05
    gamma = 0.05
    T = 0.5
    threshold = 0.25
    D = 7

    def begin(self) -> None:
        sizes = {"H": (CLASSES, self.D), "Q": (CLASSES, CLASSES), "known": (CLASSES,)}
        self.slice = {name: torch.zeros(size).double() for name, size in sizes.items()}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss, known = super().loss(c, seen), [j for j in range(CLASSES) if self.slice["known"][j]]
        for j in known:
            answer = (c.model.head(self.slice["H"][j]) / self.T).softmax(0)  # type: ignore[operator]
            loss = loss + self.lam * (answer - self.slice["Q"][j]).norm() / len(known)
        for h, j in zip(seen.h, seen.y.argmax(1).tolist()):
            if j in known:
                loss = loss + self.gamma * (h - self.slice["H"][j]).norm() / len(seen.h)
        return loss

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        z, h = self.evaluated(c.weights, self.x[rows])
        q, label = (z / self.T).softmax(1), self.y[rows].argmax(1)
        enough = [j for j in range(CLASSES) if (n := int((label == j).sum())) and n / c.n >= self.threshold]
        return {
            "means": {
                j: (int((label == j).sum()), h[label == j].mean(0), q[label == j].mean(0)) for j in enough
            }
        }

    def server(self, replies: list[Reply], old: Weights) -> None:
        for j in range(CLASSES):
            if sent := [r.shared["means"][j] for r in replies if j in r.shared["means"]]:
                n_j = sum(n for n, _, _ in sent)
                self.slice["H"][j] = sum(n / n_j * h for n, h, _ in sent)
                self.slice["Q"][j] = sum(n / n_j * q for n, _, q in sent)
                self.slice["known"][j] = 1


def test_fedhkd() -> None:
    agree(Case("cnn", 0.9), FedHKD, lam=0.7, gamma=0.3)
