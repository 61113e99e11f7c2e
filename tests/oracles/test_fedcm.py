"""FedCM (Xu et al. 2021, algorithm 1), server step size 1.

    v = alpha g + (1 - alpha) Delta_t;    y <- y - lr v, K steps
    Delta_{t+1} = (w_t - mean_k y_k) / (K lr);    w_{t+1} = w_t - K lr Delta_{t+1}
Clients differ in K here: K lr is its mean over clients. With momentum rho, K becomes the sum of 1 + rho + ...
+ rho^(K-1-s).
"""

import torch

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class FedCM(FedAvg):
    part = "fedcm"
    weighting = "equal"
    alpha = 0.1

    def begin(self) -> None:
        self.slice = {
            "delta": {n: torch.zeros_like(self.w[n]) for n in self.learned},
            "before": {n: self.w[n].clone() for n in self.learned},
            "pull": torch.ones(()),
        }

    def gradient(self, c: Client) -> None:
        for n, p in c.parameters.items():
            assert p.grad is not None
            p.grad.mul_(self.alpha).add_((1 - self.alpha) * self.slice["delta"][n])

    def leave(self, c: Client) -> Tree:
        rho = self.case.momentum
        return {"pull": c.lr * sum(sum(rho**later for later in range(c.steps - s)) for s in range(c.steps))}

    def server(self, replies: list[Reply], old: Weights) -> None:
        pull = sum(r.shared["pull"] for r in replies) / len(replies)
        self.slice["pull"] = torch.tensor(pull)
        self.slice["delta"] = {n: (old[n] - self.w[n]) / pull for n in self.learned}
        self.slice["before"] = {n: self.w[n].clone() for n in self.learned}


@on_both_models
def test_fedcm(case: Case) -> None:
    agree(case, FedCM)
