"""FedADMM (Gong et al., ICDE 2022, algorithm 1): L(w, y) = F_k(w) + <y_k, w - theta> + rho / 2 ||w - theta||^2.

    w_k+ = argmin L by SGD from theta;    y_k+ = y_k + rho (w_k+ - theta)
    Delta_k = (w_k+ - w_k) + (y_k+ - y_k) / rho;    theta <- theta + eta / |S| sum_k Delta_k
w_k is the client's own last model, at first the one it received; with own=False always the one it received. Running
statistics of batch normalisation take the plain mean.
"""

import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class FedADMM(FedAvg):
    part = "fedadmm"
    weighting = "equal"
    rho = 0.01
    lr = 1.0
    own = True

    def arrive(self, c: Client) -> None:
        new: Tree = {"y": {n: torch.zeros_like(p) for n, p in c.parameters.items()}}
        if self.own:
            new["own"] = {n: c.start[n].clone() for n in c.parameters}
        self.private.setdefault(c.k, new)

    def gradient(self, c: Client) -> None:
        """The gradient of the two terms, which the reported loss does not hold."""
        for n, y in self.private[c.k]["y"].items():
            p = c.parameters[n]
            assert p.grad is not None
            p.grad += y + self.rho * (p - c.start[n])

    def leave(self, c: Client) -> Tree:
        w, mine = c.weights, self.private[c.k]
        y = {n: old + self.rho * (w[n] - c.start[n]) for n, old in mine["y"].items()}
        last = mine["own"] if self.own else c.start
        delta = {n: (w[n] - last[n]) + (y[n] - old) / self.rho for n, old in mine["y"].items()}
        self.private[c.k] = {"y": y, **({"own": {n: w[n] for n in y}} if self.own else {})}
        return {"delta": delta}

    def merge(self, replies: list[Reply]) -> Weights:
        moved = {n: sum(r.shared["delta"][n] for r in replies) / len(replies) for n in self.learned}
        return self.weighted_mean(replies) | {n: self.w[n] + self.lr * d for n, d in moved.items()}


def test_fedadmm() -> None:
    agree(Case("cnn", 0.9), FedADMM, rho=0.5, lr=0.6)


def test_as_the_official_code_has_it() -> None:
    agree(Case(), FedADMM, rho=0.5, own=False)
