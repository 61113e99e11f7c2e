"""MoFedSAM (Qu et al., ICML 2022, algorithm 2), as FedSAM with momentum.

    v = beta grad F(w + e) + (1 - beta) m;   w <- w - lr v;    m <- mean_k (w_t - w_k) / mean_k (S_k lr)
With momentum rho of the local steps, S_k counts each step as often as it acts, as in SCAFFOLD.
"""

import torch

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.test_fedsam import FedSAM
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Reply


class MoFedSAM(FedSAM):
    part = "mofedsam"
    weighting = "equal"
    beta = 0.1

    def begin(self) -> None:
        now = {n: self.w[n] for n in self.learned}
        self.slice = {"m": {n: 0 * t for n, t in now.items()}, "w": now, "length": torch.tensor(1.0)}

    def gradient(self, c: Client) -> None:
        super().gradient(c)
        for n, p in c.parameters.items():
            assert p.grad is not None
            p.grad = self.beta * p.grad + (1 - self.beta) * self.slice["m"][n]

    def leave(self, c: Client) -> Tree:
        rho = self.case.momentum
        return {"length": c.lr * sum(sum(rho**later for later in range(c.steps - s)) for s in range(c.steps))}

    def server(self, replies: list[Reply], old: Weights) -> None:
        length = sum(r.shared["length"] for r in replies) / len(replies)
        m = {n: sum(old[n] - r.w[n] for r in replies) / len(replies) / length for n in self.learned}
        self.slice = {"m": m, "w": {n: self.w[n] for n in m}, "length": torch.tensor(length)}


@on_both_models
def test_mofedsam(case: Case) -> None:
    agree(case, MoFedSAM, rho=0.5, beta=0.3)
