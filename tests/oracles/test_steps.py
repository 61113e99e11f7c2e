"""Oracles of FedAvg and of methods that correct local steps, or take their gradients elsewhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from tests.oracles.agreement import BOTH, CASES, agreement_test, checked
from tests.oracles.plain import Case, Client, FedAvg, Pass, Reply, Tree, Weights, cross_entropy, named_tensors
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.fedadmm import FedADMM as Engine


@checked(*CASES)
# A round in which nobody answers
@checked(replace(Case(), attendance=((1, 3), (), (0, 3))))
@checked(replace(Case("cnn"), optimiser="adam", lr=0.01))
class McMahan(FedAvg):
    """FedAvg (McMahan et al., AISTATS 2017): w_{t+1} = sum_k n_k / n w_k over the clients that answered; also
    for running statistics. With nobody there the model stays as it is."""


@checked(*CASES, mu=0.5)
@checked(Case())
class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020, eq. 2): h_k(w; w_t) = F_k(w) + mu / 2 ||w - w_t||^2, over trained
    weights.
    """

    part = "fedprox"
    mu = 0.001

    def loss(self, c: Client, seen: Pass) -> Tensor:
        distance = sum(((p - c.start[n]) ** 2).sum() for n, p in c.parameters.items())
        return super().loss(c, seen) + self.mu / 2 * distance


@checked(*CASES)
class Scaffold(FedAvg):
    """SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1, option II, global step size 1).

        y <- y - lr (g_k(y) - c_k + c), K steps;    c_k+ = c_k - c + (x - y) / (K lr)
        x <- x + 1/|S| sum_k (y_k - x);             c <- c + 1/N sum_k (c_k+ - c_k)
    With momentum rho the steps of y count K - s times over, as in FedNova: K becomes the sum of 1 + rho + ... +
    rho^(K-1-s).
    """

    part = "scaffold"
    weighting = "equal"

    def zeros(self) -> Weights:
        return {n: torch.zeros_like(self.w[n]) for n in self.learned}

    def begin(self) -> None:
        self.slice = {"c": self.zeros()}

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"c": self.zeros()})

    def gradient(self, c: Client) -> None:
        for n, p in c.parameters.items():
            assert p.grad is not None
            p.grad += self.slice["c"][n] - self.private[c.k]["c"][n]

    def leave(self, c: Client) -> Tree:
        rho = self.case.momentum
        K = sum(sum(rho**later for later in range(c.steps - s)) for s in range(c.steps))
        y, old = c.weights, self.private[c.k]["c"]
        new = {n: old[n] - self.slice["c"][n] + (c.start[n] - y[n]) / (K * c.lr) for n in old}
        self.private[c.k] = {"c": new}
        return {"delta": {n: new[n] - old[n] for n in old}}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for n, c in self.slice["c"].items():
            self.slice["c"][n] = c + sum(r.shared["delta"][n] for r in replies) / self.clients


@checked(*CASES, alpha=0.1)
class FedDyn(FedAvg):
    """FedDyn (Acar et al., ICLR 2021, algorithm 1), all m clients, of which P take part.

        w_k = argmin F_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2;    g_k <- g_k - alpha (w_k - w_t)
        h <- h - alpha 1/m sum_{k in P} (w_k - w_t);               w_{t+1} = 1/|P| sum_{k in P} w_k - h / alpha
    Running statistics of batch normalisation take the plain mean and enter neither g nor h.
    """

    part = "feddyn"
    weighting = "equal"
    alpha = 0.0001

    def begin(self) -> None:
        self.slice = {"h": {n: torch.zeros_like(self.w[n]) for n in self.learned}}

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"g": {n: torch.zeros_like(p) for n, p in c.parameters.items()}})

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        for n, p in c.parameters.items():
            loss = (
                loss - (self.private[c.k]["g"][n] * p).sum() + self.alpha / 2 * ((p - c.start[n]) ** 2).sum()
            )
        return loss

    def leave(self, c: Client) -> Tree:
        w = c.weights
        g = {n: g - self.alpha * (w[n] - c.start[n]) for n, g in self.private[c.k]["g"].items()}
        self.private[c.k] = {"g": g}
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        w = self.weighted_mean(replies)
        for n, h in self.slice["h"].items():
            h = h - self.alpha / self.clients * sum(r.w[n] - self.w[n] for r in replies)
            self.slice["h"][n] = h
            w[n] = w[n] - h / self.alpha
        return w


@checked(*BOTH)
class FedCM(FedAvg):
    """FedCM (Xu et al. 2021, algorithm 1), server step size 1.

        v = alpha g + (1 - alpha) Delta_t;    y <- y - lr v, K steps
        Delta_{t+1} = (w_t - mean_k y_k) / (K lr);    w_{t+1} = w_t - K lr Delta_{t+1}
    Clients differ in K here: K lr is its mean over clients. With momentum rho, K becomes the sum of 1 + rho + ...
    + rho^(K-1-s).
    """

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


@checked(*BOTH, rho=0.5)
# Adaptive
@checked(Case(), rho=0.7, adaptive=True, eta=0.1)
class FedSAM(FedAvg):
    """FedSAM (Qu et al., ICML 2022, algorithm 1; Caldarola et al., ECCV 2022, eq. 5 for ASAM).

        e = rho g / ||g||, g = grad F(w);    w <- w - lr grad F(w + e)
        ASAM: e = rho T^2 g / ||T g||, T = |w| + eta for matrices and kernels, 1 for vectors
    Batch normalisation's running statistics see the pass at w, not the one at w + e.
    """

    part = "fedsam"
    rho = 0.1
    adaptive = False
    eta = 0.2

    def ascent(self, c: Client) -> Weights:
        """e, from the gradients at w."""
        T = {n: abs(p) + self.eta if self.adaptive and p.dim() >= 2 else 1.0 for n, p in c.parameters.items()}
        g = {n: p.grad for n, p in c.parameters.items() if p.grad is not None}
        length = sum(((T[n] * g_n) ** 2).sum() for n, g_n in g.items()) ** 0.5
        return {n: self.rho * T[n] ** 2 * g_n / length for n, g_n in g.items()}

    def gradient(self, c: Client) -> None:
        e = self.ascent(c)
        statistics = {n: t.clone() for n, t in named_tensors(c.model) if n not in c.parameters}
        for n, p in c.parameters.items():
            p += e[n]
            p.grad = None
        with torch.enable_grad():
            x, y = self.batch(c, self.x[c.rows], self.y[c.rows])
            self.loss(c, Pass(x, y, *self.forward(c, x))).backward()
        for n, p in c.parameters.items():
            p -= e[n]
        for n, t in named_tensors(c.model):
            if n in statistics:
                t.copy_(statistics[n])


@checked(*BOTH, rho=0.5, beta=0.3)
class MoFedSAM(FedSAM):
    """MoFedSAM (Qu et al., ICML 2022, algorithm 2), as FedSAM with momentum.

        v = beta grad F(w + e) + (1 - beta) m;   w <- w - lr v;    m <- mean_k (w_t - w_k) / mean_k (S_k lr)
    With momentum rho of the local steps, S_k counts each step as often as it acts, as in SCAFFOLD.
    """

    part = "mofedsam"
    rho = 0.05
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


@checked(*BOTH, rho=0.5)
# Since the last round
@checked(Case(), rho=0.5, since="round")
class FedLESAM(FedAvg):
    """FedLESAM (Fan et al., ICML 2024, eq. 4 and algorithm 1).

        e = rho (w_old - w_t) / ||w_old - w_t||;    w <- w - lr grad F(w + e)
    w_old is what the client received in its last round, or (official code) the global model of the round before
    for all.
    """

    part = "fedlesam"
    rho = 0.1
    since = "client"

    def begin(self) -> None:
        now = {n: self.w[n] for n in self.learned}
        self.slice = {"now": now, "old": now} if self.since == "round" else {}

    def arrive(self, c: Client) -> None:
        here = {n: c.start[n] for n in self.learned}
        old = self.slice["old"] if self.since == "round" else self.private.get(c.k, {"old": here})["old"]
        length = sum(((old[n] - here[n]) ** 2).sum() for n in here) ** 0.5
        self.e = {n: self.rho * (old[n] - here[n]) / length if length else 0 * here[n] for n in here}

    def batch(self, c: Client, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            for n, p in c.parameters.items():
                p += self.e[n]
        return x, y

    def gradient(self, c: Client) -> None:
        for n, p in c.parameters.items():
            p -= self.e[n]

    def leave(self, c: Client) -> Tree:
        if self.since == "client":
            self.private[c.k] = {"old": {n: c.start[n] for n in self.learned}}
        return {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        if self.since == "round":
            self.slice = {"old": self.slice["now"], "now": {n: self.w[n] for n in self.learned}}


@checked(Case("cnn", 0.9), mu=0.5)
# The correction of absent clients
@checked(Case(), everyone=True)
class FedSpeed(FedAvg):
    """FedSpeed (Sun et al., ICLR 2023, algorithm 1) with alpha = 1: lambda = 1 / mu.

        g~ = grad F(w + rho g / ||g||), g = grad F(w);    w <- w - lr (g~ - g^_k + (w - w_t) / lambda), K steps
        g^_k <- g^_k - (w_K - w_t) / lambda;    sends w_K - lambda g^_k;    w_{t+1} = their mean
    everyone: clients send w_K, and the mean of - lambda g^_k over all clients, absent ones too, is added to the
    mean of the w_K. Running statistics are those of the pass at w, and take the plain mean.
    """

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


@checked(Case("cnn", 0.9), mu=0.5, rho=0.3)
class FedSMOO(FedAvg):
    """FedSMOO (Sun et al., ICML 2023, algorithm 1), with s as in the official code: lambda_k = -mu h_k, beta = 1
    / mu.

        s_k = rho (g - mu_k - s) / ||g - mu_k - s||, g = grad F(w);    mu_k <- mu_k + s_k - s, at every step
        w <- w - lr (grad F(w + s_k) + mu (w - w_t) + mu h_k);    h_k <- h_k + (w_K - w_t)
        s <- rho mean mu_k / ||mean mu_k||;    w_{t+1} = mean w_K + mean of h_k over all clients
    Running statistics are those of the pass at w, and take the plain mean.
    """

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


@checked(Case("cnn", 0.9), rho=0.5, lr=0.6)
# The step is the share of the clients that answered
@checked(Case(), rho=0.5)
# As the official code has it
@checked(Case(), rho=0.5, own=False)
class FedADMM(FedAvg):
    """FedADMM (Gong et al., ICDE 2022, algorithm 1): L(w, y) = F_k(w) + <y_k, w - theta> + rho / 2 ||w -
    theta||^2.

        w_k+ = argmin L by SGD from theta;    y_k+ = y_k + rho (w_k+ - theta)
        Delta_k = (w_k+ - w_k) + (y_k+ - y_k) / rho;    theta <- theta + eta / |S| sum_k Delta_k
    eta is the share of the clients in S, with own=False 1, unless it is given (lr).
    w_k is the client's own last model, at first the one it received; with own=False always the one it received.
    Running statistics of batch normalisation take the plain mean.
    """

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


def test_the_model_stays_the_mean_of_what_all_clients_have() -> None:
    """Of three clients that all began with 0 two answer, with w_S = 4 and 7, rho = 0.5: (2 * 4 + 2 * 7 + 0) /
    3."""
    fed = SimpleNamespace(shared=("w",), sizes=np.array([1, 1, 1, 0]))
    replies = [Sent(k, 1.0, {"w": torch.tensor([2 * w_S])}) for k, w_S in ((0, 4.0), (1, 7.0))]
    merged = Engine(rho=0.5).merge({"w": torch.zeros(1)}, {}, Ups.of(replies, 1, "equal"), fed)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(merged["w"], torch.tensor([22 / 3]))


@checked(*BOTH, norm=0.4)
@checked(Case())
class ClipGradients(FedAvg):
    """Clipped local gradients (Pascanu et al., ICML 2013): torch's own clip_grad_norm_ before every local
    step.
    """

    part = "clip_gradients"
    norm = 1.0

    def gradient(self, c: Client) -> None:
        torch.nn.utils.clip_grad_norm_(list(c.parameters.values()), self.norm)


test_agreement = agreement_test(globals())
