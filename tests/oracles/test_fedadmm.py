"""FedADMM (Gong et al., ICDE 2022, algorithm 1): L(w, y) = F_k(w) + <y_k, w - theta> + rho / 2 ||w -
theta||^2.

    w_k+ = argmin L by SGD from theta;    y_k+ = y_k + rho (w_k+ - theta)
    Delta_k = (w_k+ - w_k) + (y_k+ - y_k) / rho;    theta <- theta + eta / |S| sum_k Delta_k
eta is the share of the clients in S, with own=False 1, unless it is given (lr).
w_k is the client's own last model, at first the one it received; with own=False always the one it received.
Running statistics of batch normalisation take the plain mean.
"""

from types import SimpleNamespace

import numpy as np
import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.fedadmm import FedADMM as Engine


class FedADMM(FedAvg):
    part = "fedadmm"
    weighting = "equal"
    rho = 0.01
    lr = 0.0
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
        eta = self.lr or (len(replies) / self.clients if self.own else 1.0)
        return self.weighted_mean(replies) | {n: self.w[n] + eta * d for n, d in moved.items()}


def test_fedadmm() -> None:
    agree(Case("cnn", 0.9), FedADMM, rho=0.5, lr=0.6)


def test_the_step_is_the_share_of_the_clients_that_answered() -> None:
    agree(Case(), FedADMM, rho=0.5)


def test_the_model_stays_the_mean_of_what_all_clients_have() -> None:
    """Of three clients that all began with 0 two answer, with w_S = 4 and 7, rho = 0.5: (2 * 4 + 2 * 7 + 0) /
    3."""
    fed = SimpleNamespace(shared=("w",), sizes=np.array([1, 1, 1, 0]))
    replies = [Sent(k, 1.0, {"w": torch.tensor([2 * w_S])}) for k, w_S in ((0, 4.0), (1, 7.0))]
    merged = Engine(rho=0.5).merge({"w": torch.zeros(1)}, {}, Ups.of(replies, 1, "equal"), fed)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(merged["w"], torch.tensor([22 / 3]))


def test_as_the_official_code_has_it() -> None:
    agree(Case(), FedADMM, rho=0.5, own=False)
