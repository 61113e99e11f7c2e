"""Oracles of methods that correct the classifier: logits, heads, and class means."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.oracles.agreement import BOTH, CASES, agreement_test, checked
from tests.oracles.plain import (
    CLASSES,
    Case,
    Client,
    FedAvg,
    Pass,
    Reply,
    Tree,
    Weights,
    cross_entropy,
    model_named,
)


@checked(*CASES)
class BSM(FedAvg):
    """Balanced softmax (Ren et al., NeurIPS 2020, eq. 4) with the label shares p of each client.

        l = -log( p_y exp(z_y) / sum_c p_c exp(z_c) )
    A class that the client lacks has p_c = 0 and drops out of the sum. At test time logits are plain.
    """

    part = "bsm"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        p = c.counts / c.n
        weighed = p * seen.z.exp()
        return -((weighed * seen.y).sum(1) / weighed.sum(1)).log().mean()


@checked(*CASES)
# A stronger calibration
@checked(Case(), tau=3.0)
@checked(Case(), tau=0.0)
class FedLC(FedAvg):
    """FedLC (Zhang et al., ICML 2022, section 4): cross-entropy with logits calibrated by the client's class
    counts.

        l = -log( exp(z_y - tau n_y^(-1/4)) / sum_c exp(z_c - tau n_c^(-1/4)) )
    over the classes that the client has (a count of 0 is an infinite shift), the true one among them: the paper's
    sum leaves it out. At test time logits are plain.
    """

    part = "fedlc"
    tau = 1.0

    def loss(self, c: Client, seen: Pass) -> Tensor:
        have = c.counts > 0
        return cross_entropy(seen.z[:, have] - self.tau / c.counts[have] ** 0.25, seen.y[:, have])


@checked(*CASES)
# Rare classes are scaled down too
@checked(*BOTH, alpha=0.2, soft=True)
# Missing classes without any logit
@checked(Case(), alpha=0.0)
class FedRS(FedAvg):
    """FedRS (Li & Zhan, KDD 2021, section 4): logits of classes that a client lacks are scaled down in training.

        l = CE(s z, y);    s_c = 1 where n_c > 0, alpha where n_c = 0;    soft: s_c = (1 - alpha) n_c / max_j n_j
        + alpha
    At test time logits are plain.
    """

    part = "fedrs"
    alpha = 0.5
    soft = False

    def loss(self, c: Client, seen: Pass) -> Tensor:
        n = c.counts.tolist()
        if self.soft:
            s = [(1 - self.alpha) * n_c / max(n) + self.alpha for n_c in n]
        else:
            s = [1.0 if n_c else self.alpha for n_c in n]
        return cross_entropy(torch.tensor(s).double() * seen.z, seen.y)


@checked(*BOTH, lam=2.0, mu=0.5)
class FedVLS(FedAvg):
    """FedVLS (Guo et al., AAAI 2025), sample by sample and class by class.

    -log( p_y e^z_y / sum_c p_c e^z_c ) + lam KL over the classes the client lacks of (received, own)
    + mu sum_c p_c log( 1/B sum_i e^(0 if y_i = c else z_ic - log p_c - log C) )
    """

    part = "fedvls"
    lam = 0.1
    mu = 0.005

    def loss(self, c: Client, seen: Pass) -> Tensor:
        p, labels, B = c.counts / c.n, seen.y.argmax(1).tolist(), len(seen.x)
        received = self.evaluated(c.start, seen.x)[0]
        absent = [j for j in range(CLASSES) if not p[j]]
        total = torch.zeros(()).double()
        for z, g, y in zip(seen.z, received, labels):
            total = total - torch.log(p[y] * z[y].exp() / (p * z.exp()).sum()) / B
            if absent:
                q, r = g[absent].softmax(0), z[absent].softmax(0)
                total = total + self.lam * (q * (q / r).log()).sum() / B
        for j in (j for j in range(CLASSES) if p[j]):
            above = [torch.exp((z[j] - torch.log(p[j] * CLASSES)) * (y != j)) for z, y in zip(seen.z, labels)]
            total = total + self.mu * p[j] * torch.log(sum(above[1:], above[0]) / B)
        return total


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.beta * x / x.norm(dim=1)[:, None]


@checked(*BOTH, gamma=0.5)
class FedETF(FedAvg):
    """FedETF (Li et al., ICCV 2023, eq. 3, 6 and 7), with features as wide as there are classes.

    v = P h / |P h|;   loss = -log( n_y^gamma exp(beta v_y . v) / sum_c n_c^gamma exp(beta v_c . v) );   V never
    changes
    """

    part = "fedetf"
    gamma = 1.0

    def model(self) -> nn.Sequential:
        *body, (_, head) = model_named(self.case.model).named_children()
        assert isinstance(head, nn.Linear)
        model = nn.Sequential()
        for name, block in body:
            model.add_module(name, block)
        model.add_module("projection", nn.Sequential(nn.Linear(head.in_features, CLASSES), Scaled()))
        model.add_module("head", nn.Linear(CLASSES, CLASSES, bias=False))
        return model

    def freezes(self, name: str) -> bool:
        return name == "head.weight"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        total = torch.zeros(()).double()
        for z, y in zip(seen.z, seen.y.argmax(1)):
            share = c.counts**self.gamma * torch.exp(z) * (c.counts > 0)
            total = total - torch.log(share[y] / share.sum())
        return total / len(seen.z)


SOME_CLASSES = ((2,), (0, 4), (1, 2, 4))
"""Nobody who answers has class 3 in round 1, or all classes in round 2: clients must complete the
prototypes."""


@checked(*CASES)
# Classes without a received prototype
@checked(*(replace(case, attendance=SOME_CLASSES) for case in BOTH), mu=1.0)
# Prototypes that nobody renews may stay
@checked(replace(Case("cnn"), attendance=SOME_CLASSES), keep_stale=True)
# Without augmentation
@checked(*BOTH, mu=0.0, eps=0.2)
# Augmentation that trains the body too
@checked(*BOTH, aug_grad=True)
# An added coefficient
@checked(Case(), form="additive", eps=0.1)
class ReBaFL(FedAvg):
    """ReBaFL (Xu et al., arXiv 2303.06314): relaxed balanced softmax and feature augmentation.

        q = (1 - eps) p_k + eps / C;  additive: (p_k + eps) / (1 + C eps)                            p_k: label
        shares (10) L0 = -log( q_y exp(z_y) / sum_c q_c exp(z_c) )
        (9) h'_i = c_{k_i} + h_i - c_{y_i},  label k_i: the classes that have a prototype, one after the other
        (15)
        L1: as L0 for (h', k) with the label shares of the augmented batch;   L = L0 + mu L1
        (16)
        c_c: the prototype received, else the mean feature of the client's class c under the received model
        (18)
        after training, with the trained model:  c_c = sum_k (sum of features of k's class c) / sum_k n_kc
        (21, 23)
    h and c are constants in L1, unless `aug_grad`. L1 is left out as long as nothing was received, and at a
    client with a single class. Prototypes of classes that nobody reported are dropped, unless `keep_stale`.
    """

    part = "rebafl"
    eps = 0.01
    mu = 0.5
    form = "smoothing"
    aug_grad = False
    keep_stale = False
    D = 7

    def begin(self) -> None:
        if self.mu:
            self.slice = {
                "prototypes": torch.zeros(CLASSES, self.D).double(),
                "known": torch.zeros(CLASSES).double(),
            }

    def arrive(self, c: Client) -> None:
        if not self.mu:
            return
        received = {j: self.slice["prototypes"][j] for j in range(CLASSES) if self.slice["known"][j]}
        own = {j: sums / n for j, (sums, n) in self.class_sums(c, c.start).items()}
        self.prototypes = {j: (own | received)[j] for j in sorted({*own, *received})}
        self.augments = bool(received) and len(own) > 1

    def class_sums(self, c: Client, w: Weights) -> dict[int, tuple[Tensor, int]]:
        """By class that client c has: the sum of its features under these weights, and their number."""
        rows = self.given.rows(c.k)
        h, label = self.evaluated(w, self.x[rows])[1], self.y[rows].argmax(1)
        return {j: (h[label == j].sum(0), int((label == j).sum())) for j in set(label.tolist())}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = balanced(seen.z, seen.y, self.smoothed(c.counts / c.n))
        if not self.mu or not self.augments:
            return loss
        known, moved, labels = list(self.prototypes), [], []
        for i, (h, y) in enumerate(zip(seen.h, seen.y.argmax(1).tolist())):
            labels.append(known[i % len(known)])
            moved.append(self.prototypes[labels[-1]] + h - self.prototypes[y])
        h_BD = torch.stack(moved)
        k_BC = torch.nn.functional.one_hot(torch.tensor(labels), CLASSES).double()
        z_BC = c.model.head(h_BD if self.aug_grad else h_BD.detach())  # type: ignore[operator]
        return loss + self.mu * balanced(z_BC, k_BC, self.smoothed(k_BC.mean(0)))

    def smoothed(self, p_C: Tensor) -> Tensor:
        if self.form == "additive":
            return (p_C + self.eps) / (1 + CLASSES * self.eps)
        return (1 - self.eps) * p_C + self.eps / CLASSES

    def leave(self, c: Client) -> Tree:
        return {"sums": self.class_sums(c, c.weights)} if self.mu else {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        if not self.mu:
            return
        before = self.slice
        self.begin()
        for j in range(CLASSES):
            if parts := [r.shared["sums"][j] for r in replies if j in r.shared["sums"]]:
                self.slice["prototypes"][j] = sum(s for s, _ in parts) / sum(n for _, n in parts)
                self.slice["known"][j] = 1
            elif self.keep_stale:
                self.slice["prototypes"][j], self.slice["known"][j] = (
                    before["prototypes"][j],
                    before["known"][j],
                )


# The balanced softmax itself
@checked(Case(), eps=0.0)
class Unrelaxed(ReBaFL):
    eps = 0.0


def balanced(z_BC: Tensor, y_BC: Tensor, q_C: Tensor) -> Tensor:
    """-log( q_y exp(z_y) / sum_c q_c exp(z_c) ), the mean over the batch."""
    weighed = q_C * z_BC.exp()
    return -((weighed * y_BC).sum(1) / weighed.sum(1)).log().mean()


@checked(*CASES, each=20, epochs=2, batch_size=16, lr=0.1)
# Real features
@checked(*BOTH, mode="features", share=0.3, epochs=3, batch_size=4, lr=0.2)
# One sample of each of two clients: two classes at most.
@checked(Case(), mode="features", share=0.01, lr=0.2)
class CCVR(FedAvg):
    """CCVR (Luo et al., NeurIPS 2021, algorithm 1 and eq. 3 and 4): the head is trained again on virtual
    features.

    After the last round, with the merged model in evaluation mode: the mean and the unbiased covariance of the
    features of class c, over the samples of all clients (which is what the formulas of the paper sum up to from
    those of each client). The server draws `each` features of every class from this normal law, as mean + g
    root^T with g standard normal and root from the eigenvectors, and trains the head on them by SGD. With
    `mode="features"` it trains it on features of max(1, floor(share n_k)) samples of each client. A class without
    a feature stays out, its row of the head as it is.
    """

    part = "ccvr"
    mode = "gaussian"
    each = 200
    share = 0.1
    epochs = 10
    batch_size = 64
    lr = 0.01
    momentum = 0.9

    def exchange(self, cohort: list[int]) -> None:
        if self.t < self.case.rounds:
            return
        h, label = self.sent() if self.mode == "features" else self.drawn()
        have = sorted(set(label.tolist()))
        y = torch.stack([label == j for j in have], 1).double()
        model = self.model_with(self.w)
        head = list(model.head.parameters())  # type: ignore[union-attr]
        optimiser = torch.optim.SGD(head, self.lr, self.momentum)
        generator = self.given.generator("ccvr", "batches")
        for _ in range(self.epochs):
            for rows in torch.randperm(len(h), generator=generator).split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(model.head(h[rows])[:, have], y[rows]).backward()  # type: ignore[operator]
                optimiser.step()
        self.w |= {n: p.detach().clone() for n, p in model.named_parameters()}

    def sent(self) -> tuple[Tensor, Tensor]:
        """Features and labels of some samples of every client."""
        rows = [
            self.given.sample(k, max(1, int(self.share * len(self.given.rows(k)))), "ccvr")
            for k in range(self.clients)
        ]
        return self.evaluated(self.w, self.x[torch.cat(rows)])[1], self.y[torch.cat(rows)].argmax(1)

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Features and labels, drawn class by class."""
        h, label = self.evaluated(self.w, self.x)[1], self.y.argmax(1)
        generator, features = self.given.generator("ccvr", "draw"), []
        for j in range(CLASSES):
            of_class = h[label == j]
            values, vectors = torch.linalg.eigh(torch.cov(of_class.T))
            root = vectors * values.clamp(min=0).sqrt()
            normal = torch.randn(self.each, len(root), generator=generator, dtype=torch.float64)
            features.append(of_class.mean(0) + normal @ root.T)
        return torch.cat(features), torch.arange(CLASSES).repeat_interleave(self.each)


SEED = 4
"""With it, client 0 is left its only sample."""


@checked(*(replace(c, seed=SEED) for c in CASES), each=3, epochs=2, batch_size=5, lr=0.1, weight_decay=0.1)
@checked(Case(seed=SEED), each=3)
class FedAvgFT(FedAvg):
    """FedAvg-FT (the diagnostic of Fig. 1 of Xu et al., arXiv 2303.06314): the server trains the head on a
    balanced set.

    After every merge: epochs of SGD with momentum and weight decay on the cross-entropy of samples that no client
    has, the same number of each class. The body stands still, in evaluation mode.
    """

    part = "fedavg_ft"
    each = 30
    epochs = 5
    batch_size = 50
    lr = 0.01
    momentum = 0.5
    weight_decay = 0.0005

    def server(self, replies: list[Reply], old: Weights) -> None:
        x, label = self.given.reserved()
        assert torch.bincount(label).tolist() == [self.each] * CLASSES
        x = x.double()
        y = torch.nn.functional.one_hot(label, CLASSES).double()
        model = self.model_with(self.w).eval()
        head = list(model.head.parameters())  # type: ignore[union-attr]
        optimiser = torch.optim.SGD(head, self.lr, self.momentum, weight_decay=self.weight_decay)
        generator = self.given.generator(self.t, "fedavg_ft")
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
        self.w |= {n: p.detach().clone() for n, p in model.named_parameters()}


test_agreement = agreement_test(globals())
