"""FedSpeed (Sun et al., ICLR 2023, algorithm 1) with alpha = 1: lambda = 1 / mu.

    g~ = grad F(w + rho g / ||g||), g = grad F(w);    w <- w - lr (g~ - g^_k + (w - w_t) / lambda), K steps
    g^_k <- g^_k - (w_K - w_t) / lambda;    sends w_K - lambda g^_k;    w_{t+1} = their mean
everyone: clients send w_K, and the mean of - lambda g^_k over all clients, absent ones too, is added to the
mean of the w_K. Running statistics are those of the pass at w, and take the plain mean.
"""

import torch

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Tree, Weights
from tests.oracles.values import Client, Pass, Reply


class FedSpeed(FedAvg):
    part = "fedspeed"
    weighting = "equal"
    mu = 0.1
    rho = 0.1
    everyone = False

    def begin(self) -> None:
        self.remember()

    def remember(self) -> dict[str, torch.Tensor]:
        """The mean of - lambda g^_k over all clients, which the server's slice holds."""
        h = [self.private[k]["h"] if k in self.private else {} for k in range(self.clients)]
        H = {
            n: sum(-h_k[n] / self.mu for h_k in h if h_k) / self.clients + 0 * self.w[n] for n in self.learned
        }
        self.slice = {"H": H} if self.everyone else {}
        return H

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"h": {n: torch.zeros_like(p) for n, p in c.parameters.items()}})

    def loss(self, c: Client, seen: Pass) -> torch.Tensor:
        self.seen = seen
        return super().loss(c, seen)

    def gradient(self, c: Client) -> None:
        w = {n: p.detach().clone() for n, p in c.parameters.items()}
        statistics = {n: b.clone() for n, b in c.model.named_buffers()}
        g = {n: p.grad.clone() for n, p in c.parameters.items() if p.grad is not None}
        norm = torch.cat([t.flatten() for t in g.values()]).norm()
        for n, p in c.parameters.items():
            p.add_(self.rho * g[n] / norm)
        with torch.enable_grad():
            loss = cross_entropy(self.forward(c, self.seen.x)[0], self.seen.y)
            there = dict(zip(c.parameters, torch.autograd.grad(loss, list(c.parameters.values()))))
        for n, b in c.model.named_buffers():
            b.copy_(statistics[n])
        for n, p in c.parameters.items():
            p.copy_(w[n])
            p.grad = there[n] - self.private[c.k]["h"][n] + self.mu * (w[n] - c.start[n])

    def leave(self, c: Client) -> Tree:
        w = c.weights
        h = {n: old - self.mu * (w[n] - c.start[n]) for n, old in self.private[c.k]["h"].items()}
        self.private[c.k] = {"h": h}
        return {"sent": {n: w[n] - (0 if self.everyone else h_n / self.mu) for n, h_n in h.items()}}

    def merge(self, replies: list[Reply]) -> Weights:
        mean = {n: torch.stack([r.shared["sent"][n] for r in replies]).mean(0) for n in self.learned}
        if self.everyone:
            mean = {n: mean[n] + h for n, h in self.remember().items()}
        return self.weighted_mean(replies) | mean


def test_fedspeed() -> None:
    agree(Case("cnn", 0.9), FedSpeed, mu=0.5)


def test_the_correction_of_absent_clients() -> None:
    agree(Case(), FedSpeed, everyone=True)
