"""FedSMOO (Sun et al., ICML 2023, algorithm 1), with s as in the official code: lambda_k = -mu h_k, beta = 1
/ mu.

    s_k = rho (g - mu_k - s) / ||g - mu_k - s||, g = grad F(w);    mu_k <- mu_k + s_k - s, at every step
    w <- w - lr (grad F(w + s_k) + mu (w - w_t) + mu h_k);    h_k <- h_k + (w_K - w_t)
    s <- rho mean mu_k / ||mean mu_k||;    w_{t+1} = mean w_K + mean of h_k over all clients
Running statistics are those of the pass at w, and take the plain mean.
"""

import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class FedSMOO(FedAvg):
    part = "fedsmoo"
    weighting = "equal"
    mu = 0.1
    rho = 0.1

    def begin(self) -> None:
        self.slice = {which: {n: torch.zeros_like(self.w[n]) for n in self.learned} for which in ("s", "H")}

    def arrive(self, c: Client) -> None:
        zeros = {n: torch.zeros_like(p) for n, p in c.parameters.items()}
        self.private.setdefault(c.k, {"m": dict(zeros), "h": dict(zeros)})

    def loss(self, c: Client, seen: Pass) -> torch.Tensor:
        self.seen = seen
        return super().loss(c, seen)

    def gradient(self, c: Client) -> None:
        w = {n: p.detach().clone() for n, p in c.parameters.items()}
        statistics = {n: b.clone() for n, b in c.model.named_buffers()}
        m, h, s = self.private[c.k]["m"], self.private[c.k]["h"], self.slice["s"]
        up = {n: p.grad - m[n] - s[n] for n, p in c.parameters.items() if p.grad is not None}
        norm = torch.cat([t.flatten() for t in up.values()]).norm()
        for n, p in c.parameters.items():
            p.add_(self.rho * up[n] / norm)
        with torch.enable_grad():
            loss = cross_entropy(self.forward(c, self.seen.x)[0], self.seen.y)
            there = dict(zip(c.parameters, torch.autograd.grad(loss, list(c.parameters.values()))))
        for n, b in c.model.named_buffers():
            b.copy_(statistics[n])
        for n, p in c.parameters.items():
            p.copy_(w[n])
            p.grad = there[n] + self.mu * (w[n] - c.start[n]) + self.mu * h[n]
            m[n] = m[n] + self.rho * up[n] / norm - s[n]

    def leave(self, c: Client) -> Tree:
        h, w = self.private[c.k]["h"], c.weights
        self.private[c.k]["h"] = {n: t + w[n] - c.start[n] for n, t in h.items()}
        return {"m": self.private[c.k]["m"]}

    def merge(self, replies: list[Reply]) -> Weights:
        mean = self.weighted_mean(replies)
        H = {n: sum(p["h"][n] for p in self.private.values()) / self.clients for n in self.learned}
        self.slice["H"] = H
        return mean | {n: mean[n] + t for n, t in H.items()}

    def server(self, replies: list[Reply], old: Weights) -> None:
        m = {n: sum(r.shared["m"][n] for r in replies) / len(replies) for n in self.learned}
        norm = torch.cat([t.flatten() for t in m.values()]).norm()
        self.slice["s"] = {n: self.rho * t / norm for n, t in m.items()}


def test_fedsmoo() -> None:
    agree(Case("cnn", 0.9), FedSMOO, mu=0.5, rho=0.3)
