"""Oracles of methods that divide the model into what is common and what stays at a client."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, layer_norm

from tests.oracles.agreement import (
    BOTH,
    CASES,
    Dispatched,
    Divided,
    agree,
    agreement_test,
    checked,
    head_rests,
)
from tests.oracles.plain import (
    ATTENDANCE,
    CLASSES,
    Case,
    Client,
    FedAvg,
    Law,
    Pass,
    Reply,
    Tree,
    Weights,
    cross_entropy,
    loaded,
    split_forward,
)
from tests.oracles.test_mixtures import FedALA
from unskew.methods.floco import nearest


@checked(*CASES)
class Local(FedAvg):
    """Local training: every client keeps a model of its own, and nothing is merged."""

    part = "local"

    def keeps(self, name: str) -> bool:
        return True

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


NORMS = [case for case in CASES if case.model == "cnn"]


class FedBN(FedAvg):
    """FedBN (Li et al., ICLR 2021, algorithm 1): averages every layer but batch normalisation's, which stay on
    the client.

    Weights, biases and running statistics are neither sent nor overwritten, however long a client is away. Client
    k is scored by the server's weights with its own batch normalisation.
    """

    part = "fedbn"
    weighted = True

    @property
    def weighting(self) -> str:  # type: ignore[override]
        return "size" if self.weighted else "equal"

    def keeps(self, name: str) -> bool:
        return name in ("conv.1.weight", "conv.1.bias", "conv.1.running_mean", "conv.1.running_var")

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w | kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@pytest.mark.parametrize("case", NORMS, ids=lambda c: f"momentum{c.momentum:g}")
@pytest.mark.parametrize("weighted", [True, False])
def test_fedbn(case: Case, weighted: bool) -> None:
    agree(case, FedBN, weighted=weighted)


class FedPer(Divided):
    """FedPer (Arivazhagan et al. 2019, algorithm 1): the base is averaged by size, the personalisation layers
    stay.

    Client k trains both together; it is scored by the server's base under its own layers, however old these are.
    """

    part = "fedper"
    blocks = 1

    def keeps(self, name: str) -> bool:
        own = {1: ("head",), 2: ("fc", "head")}[self.blocks]
        return name.split(".")[0] in own


@pytest.mark.parametrize(("model", "blocks"), [("mlp", 1), ("cnn", 2)])
def test_fedper(model: str, blocks: int) -> None:
    agree(Case(model, 0.9), FedPer, blocks=blocks)


class LGFedAvg(Divided):
    """LG-FedAvg (Liang et al. 2020, algorithm 1): the global layers are averaged by size, the local
    representation stays.

    What stays has running statistics, too.
    """

    part = "lg_fedavg"
    blocks = 1

    def keeps(self, name: str) -> bool:
        merged = {1: ("head",), 2: ("fc", "head")}[self.blocks]
        return name.split(".")[0] not in merged


@pytest.mark.parametrize(("model", "blocks"), [("mlp", 1), ("cnn", 2)])
def test_lg_fedavg(model: str, blocks: int) -> None:
    agree(Case(model, 0.9), LGFedAvg, blocks=blocks)


class FedRep(Divided):
    """FedRep (Collins et al., ICML 2021, algorithm 1): of a client's steps the first train its head, the others
    the body.

    Two optimisers, each with its own momentum and decay, take turns; each has one at least, and a single step is
    of both. Heads stay; bodies are averaged by size.
    """

    part = "fedrep"
    head = 0.8

    def keeps(self, name: str) -> bool:
        return name.startswith("head.")

    def arrive(self, c: Client) -> None:
        self.turn = Turns(c, self.head, super().optimiser)

    def optimiser(self, learns: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return self.turn  # type: ignore[return-value]


class Turns:
    """Whose turn it is follows from the number of the step."""

    def __init__(self, c: Client, head: float, make):
        self.c, self.head = c, head
        self.body = make([p for n, p in c.parameters.items() if not n.startswith("head.")], c.lr)
        self.own = make([p for n, p in c.parameters.items() if n.startswith("head.")], c.lr)

    def zero_grad(self) -> None:
        self.body.zero_grad()
        self.own.zero_grad()

    def step(self) -> None:
        rests = head_rests(self.c, self.head)
        for optimiser in [o for o, is_head in ((self.own, True), (self.body, False)) if not rests[is_head]]:
            optimiser.step()


@pytest.mark.parametrize("case", [Case("mlp", 0.9), Case("cnn", 0.9)], ids=lambda c: c.model)
def test_fedrep(case: Case) -> None:
    agree(case, FedRep, head=0.6)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_adam_counts_the_steps_of_head_and_body_apart(optimiser: str) -> None:
    """Counted together, the body's first step would be corrected for averages it lacks, and half as long."""
    agree(Case("mlp", optimiser=optimiser, lr=0.01), FedRep, head=0.6)


@pytest.mark.parametrize("head", [0.8, 0.2])
def test_with_one_or_two_steps_neither_head_nor_body_is_left_out(head: float) -> None:
    agree(Case("mlp", 0.9, batch=8, epochs=1), FedRep, head=head)


@checked(Case("cnn", 0.9), eta=20.0, head=0.3)
# Fedah with one or two steps neither head nor body is left out
@checked(Case("mlp", batch=8, epochs=1), eta=20.0, head=0.8)
class FedAH(FedALA):
    """FedAH (arXiv 2412.01295): FedALA's start of the head, then FedRep's head before body, and the mean of both
    by size.
    """

    part = "fedah"
    first = 1
    head = 0.5

    def gradient(self, c: Client) -> None:
        rests = head_rests(c, self.head)
        for n, p in c.model.named_parameters():
            if rests[n.startswith("head.")]:
                p.grad = None  # torch's optimisers leave such a weight and its momentum alone


@pytest.mark.parametrize("attendance", [ATTENDANCE, ((3,), (3,), (3,))], ids=["some", "one"])
def test_with_adam_the_body_begins_with_its_own_first_step(attendance: tuple[tuple[int, ...], ...]) -> None:
    """Its moments begin where the head's end, and bias is corrected by the steps that they have seen, be it
    in lanes or not."""
    agree(Case("mlp", optimiser="adam", lr=0.01, attendance=attendance), FedAH, eta=20.0, head=0.6)


@checked(*CASES)
@checked(*CASES, weighted=False)
# It took one step a pass on pieces of 256 unshuffled samples, not SGD with `batch`.
@checked(*CASES, finetune_epochs=3)
@checked(*CASES, finetune_epochs=2, lr=0.5)
@checked(*(replace(case, batch=32) for case in CASES), finetune_epochs=1)
class FedBABU(FedAvg):
    """FedBABU (Oh, Kim & Yun, ICLR 2022, algorithm 1): the head keeps its random start, everything else is
    averaged.

    Momentum and weight decay do not touch the head either. For its own score a client trains the head on its
    data, by SGD.
    """

    part = "fedbabu"
    finetune_epochs = 0
    lr = 0.0
    weighted = True

    @property
    def weighting(self) -> str:  # type: ignore[override]
        return "size" if self.weighted else "equal"

    def freezes(self, name: str) -> bool:
        return name.startswith("head.")

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.finetuned(k) for k in range(self.clients)} if self.finetune_epochs else {}
        return super().answers() | own

    def finetuned(self, k: int) -> Tensor:
        """Client k's logits after SGD on its head, in minibatches of its shuffled samples."""
        model = self.model_with(self.w).eval()
        optimiser = torch.optim.SGD(model.head.parameters(), self.lr or self.case.rate(self.t))  # type: ignore[arg-type]
        for epoch in range(self.finetune_epochs):
            shuffled = self.given.sample(k, len(self.given.rows(k)), f"fedbabu/{self.t}/{epoch}")
            for rows in shuffled.split(self.case.batch):
                optimiser.zero_grad()
                cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                optimiser.step()
        with torch.no_grad():
            return model(self.tests_of(k))


class FedRoD(FedAvg):
    """FedRoD (Chen & Chao, ICLR 2022, eq. 4 to 6, linear personal head).

    Client k, n_kc its samples of class c, g(h) = W_G h + b_G, p(h) = W_P h + b_P:
        l = mean_i -log( n_ky e^{g_y} / sum_c n_kc e^{g_c} ) + mean_i CE(p(h) + g(h), y)      second term: only P
        learns
    Server: the mean by size of all but P. Client k is scored by p + g on the server's features.
    """

    part = "fedrod"

    def keeps(self, name: str) -> bool:
        return name.startswith("fedrod.")

    def loss(self, c: Client, seen: Pass) -> Tensor:
        odds = c.counts * seen.z.exp()
        balanced = -((seen.y * odds).sum(1) / odds.sum(1)).log().mean()
        own = seen.h.detach() @ c.extra["fedrod.head.weight"].T + c.extra["fedrod.head.bias"]
        return balanced + cross_entropy(own + seen.z.detach(), seen.y)

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        z, h = self.evaluated(self.w, self.tests_of(k))
        return z + h @ self.kept[k]["fedrod.head.weight"].T + self.kept[k]["fedrod.head.bias"]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fedrod(model: str) -> None:
    agree(Case(model, 0.9), FedRoD)


@checked(*BOTH, lr=0.5, epochs=2, batch_size=4)
class FedGH(FedAvg):
    """FedGH (Yi et al., ACM MM 2023, algorithm 1): the head is trained at the server on every client's mean
    feature of each class.

        m_kc by client k's trained model;    w_head <- w_head - lr grad mean CE(head(m), c) over minibatches of
        the pairs (m, c)
    Bodies never leave. The order of pairs is given.
    """

    part = "fedgh"
    lr = 0.01
    epochs = 1
    batch_size = 1

    def keeps(self, name: str) -> bool:
        return not name.startswith("head.")

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        h, label = self.evaluated(c.weights, self.x[rows])[1], self.y[rows].argmax(1)
        return {"means": {j: h[label == j].mean(0) for j in sorted(set(label.tolist()))}}

    def merge(self, replies: list[Reply]) -> Weights:
        pairs = [(m, j) for r in replies for j, m in r.shared["means"].items()]
        present = sorted({j for _, j in pairs})
        W, b = self.w["head.weight"].clone().requires_grad_(), self.w["head.bias"].clone().requires_grad_()
        generator = self.given.generator(self.t, "fedgh")
        for _ in range(self.epochs):
            order = torch.randperm(len(pairs), generator=generator).tolist()
            for first in range(0, len(pairs), self.batch_size):
                chosen = [pairs[i] for i in order[first : first + self.batch_size]]
                z = [(W @ m + b)[present].log_softmax(0)[present.index(j)] for m, j in chosen]
                loss = -sum(z[1:], z[0]) / len(z)
                slopes = torch.autograd.grad(loss, [W, b])
                with torch.no_grad():
                    W -= self.lr * slopes[0]
                    b -= self.lr * slopes[1]
        return self.w | {"head.weight": W.detach(), "head.bias": b.detach()}

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w | kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@checked(Case("cnn", 0.9), rate=0.5, passes=2)
class FedAS(Divided):
    """FedAS (Yang et al., CVPR 2024): the received body takes a pass towards the means m_c of what the client's
    own body saw.

    Then it trains; F_k = sum over batches of |grad CE|^2 of the trained model, and w = sum_k F_k w_k / sum_k F_k.
    The head stays at the client, which is scored by the model that it trained last.
    """

    part = "fedas"
    rate = 0.01
    passes = 1

    def keeps(self, name: str) -> bool:
        return name.startswith("head.")

    def arrive(self, c: Client) -> None:
        rows = self.given.rows(c.k)
        last = self.private[c.k]["w"] if c.k in self.private else c.start
        f, label = self.evaluated(last, self.x[rows])[1], self.y[rows].argmax(1)
        m = {j: f[label == j].mean(0) for j in set(label.tolist())}
        model = self.model_with(c.start).eval()
        for _ in range(self.passes):
            for batch in rows.split(self.case.batch):
                f, label = split_forward(model, self.x[batch])[1], self.y[batch].argmax(1)
                model.zero_grad()
                torch.stack(
                    [(f[label == j] - m[j]).pow(2).mean() for j in set(label.tolist())]
                ).sum().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        if p.grad is not None:
                            p -= self.rate * p.grad
        loaded(c.model, {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers())})

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        model, F = self.model_with(c.weights).eval(), 0.0
        for batch in self.given.rows(c.k).split(self.case.batch):
            model.zero_grad()
            cross_entropy(model(self.x[batch]), self.y[batch]).backward()
            F += sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None)
        return {"F": F}

    def merge(self, replies: list[Reply]) -> Weights:
        whole = sum(r.shared["F"] for r in replies)
        return self.w | {n: sum(r.shared["F"] / whole * r.w[n] for r in replies) for n in replies[0].w}  # type: ignore[misc]

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.private[k]["w"], self.tests_of(k))[0] for k in self.private}


D = 7


@checked(Case("cnn", 0.9, lr=0.02), lam=0.7)
# SGD leaves the sum of the own head's rows as it was; only with Adam does u depend on when it is taken. Adam divides small gradients by themselves and amplifies float32 rounding, hence the tolerance.
@checked(Case("cnn", lr=0.01, optimiser="adam"), atol=5e-4, lam=0.7)
class FedCP(FedAvg):
    """FedCP (Zhang et al., KDD 2023, eq. 2 to 7): CE(P(h r) + G(h (1 - r))) + lam MMD(h, h_t); the policy r is
    learned, G constant.

    (r, 1 - r) = softmax of two halves of relu(LayerNorm(linear(h u))) and Gumbel noise; u the normalised sum of
    P's rows at the round's start. (P + G) / 2 is merged as the head. At test time there is no noise.
    """

    part = "fedcp"
    lam = 5.0

    def keeps(self, name: str) -> bool:
        return name.startswith("fedcp.head") or name == "fedcp.on"

    def freezes(self, name: str) -> bool:
        return name == "fedcp.on"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        drawn = self.noise(c, "u", Law("uniform", shape=(2, D)))[c.step][: len(seen.h)]
        gumbel = -torch.log(-torch.log(drawn))
        z = self.divided(dict(c.extra), c.start, seen.h, gumbel)
        return cross_entropy(z, seen.y) + self.lam * mmd(seen.h, self.evaluated(c.start, seen.x)[1])

    def divided(self, w: Weights, start: Weights, h: Tensor, gumbel: Tensor | float) -> Tensor:
        rows = start["fedcp.head.weight"].sum(0)
        a = layer_norm((h * rows / rows.norm()) @ w["fedcp.map"].T + w["fedcp.shift"], (2 * D,))
        a = torch.relu(a * w["fedcp.norm"][0] + w["fedcp.norm"][1]).reshape(-1, 2, D)
        r = (a + gumbel).softmax(1)
        own = (h * r[:, 0]) @ w["fedcp.head.weight"].T + w["fedcp.head.bias"]
        return own + (h * r[:, 1]) @ start["head.weight"].T + start["head.bias"]

    def train(self, k: int) -> Reply:
        reply = super().train(k)
        own = {n: self.kept[k][f"fedcp.{n}"] for n in ("head.weight", "head.bias")}
        return replace(reply, w=reply.w | {n: (self.w[n] + t) / 2 for n, t in own.items()})

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(self.w | kept, k) for k, kept in self.kept.items()}

    def own(self, w: Weights, k: int) -> Tensor:
        return self.divided(w, w, self.evaluated(w, self.tests_of(k))[1], 0.0)


def mmd(h: Tensor, g: Tensor) -> Tensor:
    def k(a: Tensor, b: Tensor) -> Tensor:
        apart = (a[:, None] - b).pow(2).sum(2)
        return sum(torch.exp(-apart / (2 * s)) for s in (10, 15, 20, 50)).mean()  # type: ignore[union-attr]

    return k(h, h) + k(g, g) - 2 * k(h, g)


@checked(Case("cnn", 0.9, lr=0.02), lam=0.5)
class GPFL(Divided):
    """GPFL (Zhang et al., ICCV 2023, eq. 1 to 8): CE(head(V(f, p))) + CE(cos(V(f, g), E)) + lam |V(f, g) - E_y|;
    the head stays.

    V(f, u) = relu(f (gamma(u) + 1) + beta(u));  gamma, beta: LayerNorm(relu(linear)).   g, p: means of the
    received embeddings, of all classes alike and by the client's label shares; 0 in round 1.
    """

    part = "gpfl"
    lam = 0.01

    def keeps(self, name: str) -> bool:
        return name.startswith("head.")

    def loss(self, c: Client, seen: Pass) -> Tensor:
        w = {n.removeprefix("gpfl."): t for n, t in c.extra.items()}
        g, p = self.conditions(c.k, self.t)
        own, common = (self.conditioned(w, seen.h, u) for u in (p, g))
        to_classes = torch.stack([cosine_similarity(common, e[None]) for e in w["E"]], 1)
        received = self.w["gpfl.E"][seen.y.argmax(1)]
        loss = cross_entropy(c.model.head(own), seen.y) + cross_entropy(to_classes, seen.y)  # type: ignore[operator]
        return loss + self.lam * torch.linalg.matrix_norm(common - received)

    def conditions(self, k: int, t: int) -> tuple[Tensor, Tensor]:
        """g and p in round t, of the embeddings that are there."""
        E, y = self.w["gpfl.E"], self.y[self.given.rows(k)]
        if t == 1:
            return 0 * E[0], 0 * E[0]
        return sum(E) / CLASSES, sum(E[int(j)] for j in y.argmax(1)) / len(y)  # type: ignore[return-value]

    def conditioned(self, w: Mapping[str, Tensor], f: Tensor, u: Tensor) -> Tensor:
        terms: list[Tensor] = []
        for which in ("gamma", "beta"):
            v = torch.relu(w[f"{which}.map"] @ u + w[f"{which}.shift"])
            v = (v - v.mean()) / (v.var(correction=0) + nn.LayerNorm(1).eps).sqrt()
            terms.append(v * w[f"{which}.norm"][0] + w[f"{which}.norm"][1])
        return torch.relu(f * (terms[0] + 1) + terms[1])

    def answers(self) -> dict[int, Tensor]:
        return {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        f = self.evaluated(self.w | self.kept[k], self.tests_of(k))[1]
        w = {n.removeprefix("gpfl."): t for n, t in self.w.items()}
        read = self.conditioned(w, f, self.conditions(k, self.t + 1)[1])
        return read @ self.kept[k]["head.weight"].T + self.kept[k]["head.bias"]


@checked(Case("cnn", 0.9), lam=2.0, head=0.4)
# Fedpac with one or two steps neither head nor body is left out
@checked(Case("mlp", batch=8, epochs=1))
class FedPAC(Dispatched):
    """FedPAC (Xu et al., ICLR 2023, eq. 3 to 8): heads of other clients by the shares with the least bias and
    variance.

    h_kc = p_c mean of f over client k's samples of class c,   V_k = (mean |f|^2 - sum_c |h_kc|^2) / n_k,   at the
    received body a_k = argmin over the simplex of  sum_j a_j^2 V_j + sum_c |h_kc - sum_j a_j h_jc|^2: the best
    over every set of clients, where inside the set all derivatives are equal.
    """

    part = "fedpac"
    lam = 1.0
    head = 0.167

    def begin(self) -> None:
        D = self.evaluated(self.w, self.x_test)[1].shape[1]
        heads = self.rows([{n: t for n, t in self.w.items() if n.startswith("head.")}] * self.clients)
        self.slice = {"z": torch.zeros(CLASSES, D), "known": torch.zeros(CLASSES), "head": heads}

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: t[k] for n, t in self.slice["head"].items()}

    def by_class(self, w: Weights, k: int) -> dict[int, Tensor]:
        """The features of client k's samples, by class."""
        rows = self.given.rows(k)
        f, label = self.evaluated(w, self.x[rows])[1], self.y[rows].argmax(1)
        return {j: f[label == j] for j in sorted(set(label.tolist()))}

    def arrive(self, c: Client) -> None:
        f = self.by_class(c.start, c.k)
        h = {j: f_j.sum(0) / c.n for j, f_j in f.items()}
        squares = sum(f_j.pow(2).sum() for f_j in f.values()) / c.n
        self.seen: dict[str, Any] = {
            "h": torch.stack([h[j] if j in h else 0 * f[min(f)][0] for j in range(CLASSES)]),
            "V": (squares - sum(h_j.pow(2).sum() for h_j in h.values())) / c.n,
            "mu": {j: f_j.mean(0) for j, f_j in f.items()},
        }

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if not self.slice["known"].any():
            return loss
        for f, j in zip(seen.h, seen.y.argmax(1).tolist()):
            target = self.slice["z"][j] if self.slice["known"][j] else self.seen["mu"][j]
            loss = loss + self.lam * (f - target).pow(2).mean() / len(seen.h)
        return loss

    def gradient(self, c: Client) -> None:
        rests = head_rests(c, self.head)
        for n, p in c.model.named_parameters():
            if rests[n.startswith("head.")]:
                p.grad = None  # torch's optimisers leave such a weight and its momentum alone

    def leave(self, c: Client) -> Tree:
        f = self.by_class(c.weights, c.k)
        return {"h": self.seen["h"], "V": self.seen["V"], "f": f}

    def server(self, replies: list[Reply], old: Weights) -> None:
        found = [[r.shared["f"].get(j, torch.zeros(0)) for r in replies] for j in range(CLASSES)]
        n = [sum(len(f) for f in fs) for fs in found]
        z = 0 * self.slice["z"].double()
        for j, fs in enumerate(found):
            z[j] = sum((f.sum(0) for f in fs if len(f)), z[j]) / max(1, n[j])
        heads = {name: t.clone() for name, t in self.slice["head"].items()}
        a = best(torch.stack([r.shared["h"] for r in replies]), torch.stack([r.shared["V"] for r in replies]))
        for r, a_k in zip(replies, a):
            for name in heads:
                heads[name][r.k] = sum(x * q.w[name] for x, q in zip(a_k, replies))
        self.slice = {"z": z, "known": torch.tensor([float(m > 0) for m in n]), "head": heads}


def best(h: Tensor, V: Tensor) -> Tensor:
    """[K, K]: every client's shares."""
    return torch.stack([least(h[k] - h, V) for k in range(len(h))])


def least(away: Tensor, V: Tensor) -> Tensor:
    """The shares a with the least sum_j a_j^2 V_j + |sum_j a_j away_j|^2, by trying every positive set."""
    K, found = len(V), (math.inf, V)
    for chosen in itertools.chain(*(itertools.combinations(range(K), size) for size in range(1, K + 1))):
        d, one = away[list(chosen)].flatten(1), torch.ones(len(chosen), 1).double()
        equal = torch.cat(
            [torch.cat([d @ d.T + V[list(chosen)].diag(), one], 1), torch.cat([one.T, 0 * one[:1]], 1)]
        )
        right = torch.cat([0 * one, one[:1]])
        a = torch.zeros(K).double()
        a[list(chosen)] = torch.linalg.lstsq(equal, right, driver="gelsd").solution[:-1, 0]
        cost = float((a.pow(2) * V).sum() + torch.einsum("j,j...->...", a, away).pow(2).sum())
        if (a >= -1e-12).all() and abs(float(a.sum()) - 1) < 1e-9 and cost < found[0]:
            found = (cost, a)
    return found[1]


HEAD = ("head.bias", "head.weight")


@checked(Case("cnn", 0.9), endpoints=3, tau=1.0, rho=0.2)
class Floco(Dispatched):
    """FLOCO (Grinwald et al., NeurIPS 2024): CE with the head sum_m a_m theta_m, a anywhere on the simplex, later
    near a_k.

    a_k: principal components of how clients' endpoints moved, put on the simplex where they are least crowded.
    """

    part = "floco"
    endpoints = 10
    rho = 0.1
    tau = 0.0

    def flat(self, w: Weights) -> Tensor:
        return torch.cat([w[n].flatten() for n in sorted(w) if n.startswith("floco.")])

    def begin(self) -> None:
        K, M = self.clients, self.endpoints
        at = self.flat(self.w)
        zeros = {"moves": torch.zeros(K, len(at)).double(), "known": torch.zeros(K), "on": torch.zeros(K)}
        self.slice = {"at": at, "a": torch.full((K, M), 1 / M).double(), **zeros}

    def theta(self, w: Any, a: Tensor) -> Weights:
        return {n: sum(a[m] * w[f"floco.{m}.{n}"] for m in range(self.endpoints)) for n in HEAD}  # type: ignore[misc]

    def sent_to(self, k: int) -> Weights:
        return self.w | self.theta(self.w, self.slice["a"][k])

    def loss(self, c: Client, seen: Pass) -> Tensor:
        u = self.noise(c, "u", Law("uniform", shape=(self.endpoints + 1,), per_sample=False))[c.step].double()
        if self.slice["on"][c.k]:
            v = 2 * u[1:] - 1
            a = self.slice["a"][c.k] + self.rho * u[0] * v / v.abs().sum()
        else:
            a = torch.log(1 / (1 - u[1:])) / torch.log(1 / (1 - u[1:])).sum()
        head = self.theta(c.extra, a)
        return cross_entropy(seen.h @ head["head.weight"].T + head["head.bias"], seen.y)

    def gradient(self, c: Client) -> None:
        for n in HEAD:
            c.parameters[n].grad = None

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.w |= self.theta(self.w, torch.full((self.endpoints,), 1 / self.endpoints).double())
        for r in replies:
            self.slice["moves"][r.k] = self.flat(r.w) - self.flat(old)
            self.slice["known"][r.k] = 1
        self.slice["at"] = self.flat(self.w)
        if self.t == self.tau:
            self.slice["on"] = self.slice["known"].clone()
            self.project()

    def project(self) -> None:
        who = self.slice["known"].nonzero().flatten().tolist()
        moves = self.slice["moves"][who]
        u, s, _ = torch.linalg.svd(moves - moves.mean(0), full_matrices=False)
        kappa = (u * s)[:, : self.endpoints]
        for column in kappa.T:
            column *= column[column.abs().argmax()].sign()
        z = torch.linspace(1e-4, 1, 1000)[:, None, None].double()
        tried = on_simplex(kappa.expand(1000, -1, -1), z) / z
        gaps = (tried[:, :, None] - tried[:, None]).norm(dim=3).clamp(min=1e-4)
        pairs = torch.triu(torch.ones(len(who), len(who)), 1)
        self.slice["a"][who] = tried[(gaps.pow(-2) * pairs).sum((1, 2)).argmin()]


def on_simplex(rows: Tensor, z: Tensor) -> Tensor:
    """max(row - b, 0) with the b at which the sum is z, by halving."""
    low, high = rows.amin(-1, keepdim=True) - z, rows.amax(-1, keepdim=True) + 0 * z
    for _ in range(60):
        b = (low + high) / 2
        more = (rows - b).clamp(min=0).sum(-1, keepdim=True) > z
        low, high = torch.where(more, b, low), torch.where(more, high, b)
    return (rows - low).clamp(min=0)


def test_the_nearest_point_of_a_simplex() -> None:
    torch.testing.assert_close(
        nearest(torch.tensor([[0.5, 0.1, -2.0]]), 1.0), torch.tensor([[0.7, 0.3, 0.0]])
    )


class KNNPer(FedAvg):
    """kNN-Per (Marfoq et al., ICML 2022, eq. 7 to 9): FedAvg, and at test time, for client k and an input with
    features h,

        p = share q + (1 - share) softmax(z),   q_c = sum_{i in kNN(h)} e^{-|h - h_i| / scale} 1[y_i = c] / sum_{i
        in kNN(h)} e^{-|h - h_i| / scale}
    The gaussian kernel of its code has |h - h_i|^2 / D instead of |h - h_i|. Client 0 has one sample, fewer than
    k.
    """

    part = "knn_per"
    k = 10
    share = 0.5
    scale = 1.0
    kernel = "exponential"

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in range(self.clients)}

    def own(self, k: int) -> Tensor:
        rows = self.given.rows(k)
        z, h = self.evaluated(self.w, self.tests_of(k))
        own_h = self.evaluated(self.w, self.x[rows])[1]
        answers: list[Tensor] = []
        for z_i, h_i in zip(z, h):
            far = (own_h - h_i).norm(dim=1)
            near = far.argsort()[: self.k]
            d = far[near] ** 2 / h.shape[1] if self.kernel == "gaussian" else far[near]
            counts = (-d / self.scale).exp()
            q = (counts[:, None] * self.y[rows[near]]).sum(0) / counts.sum()
            answers.append(self.share * q + (1 - self.share) * z_i.softmax(0))
        return torch.stack(answers).log()


@pytest.mark.parametrize(("model", "kernel"), [("mlp", "exponential"), ("cnn", "gaussian")])
def test_knn_per(model: str, kernel: str) -> None:
    agree(Case(model), KNNPer, k=3, share=0.7, scale=0.5, kernel=kernel)


test_agreement = agreement_test(globals())
