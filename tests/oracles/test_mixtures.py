"""Oracles of methods that send each client weights of its own: clusters, mixtures, networks and masks."""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.agreement import (
    CASES,
    Dispatched,
    agree,
    agreement_test,
    checked,
    on_both_models,
)
from tests.oracles.plain import (
    SIZES,
    Case,
    Client,
    FedAvg,
    Pass,
    Reply,
    Tree,
    Weights,
    cross_entropy,
    evaluating,
    loaded,
    model_named,
    split_forward,
)
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.methods.cfl import CFL as Engine
from unskew.methods.fedamp import FedAMP as EngineOfFedamp
from unskew.methods.fedcac import FedCAC as EngineOfFedcac
from unskew.methods.fedmtl import FedMTL as EngineOfFedmtl
from unskew.methods.pfedla import PFedLA


@checked(Case("cnn", 0.9), still=100.0, moving=0.0, first=1, gap=0.1)
# Before the first split it is one cluster
@checked(Case(), first=9)
class CFL(Dispatched):
    """CFL (Sattler et al., TNNLS 2021, algorithm 3): a cluster at rest whose clients are not is split in two.

    th_c <- th_c + sum_k n_k / n_c d_k;    split where |mean d| < still, max |d| > moving and three clients or
    more, into the two parts with the least maximum cosine between them.
    """

    part = "cfl"
    still = 0.4
    moving = 1.6
    first = 20
    gap = 0.0

    def begin(self) -> None:
        self.th, self.unused = [dict(self.w)], dict(self.w)
        self.of = [0] * self.clients
        self.d: dict[int, Weights] = {}
        self.note()

    def note(self) -> None:
        zeros = {n: torch.zeros_like(self.w[n]) for n in self.learned}
        self.slice = {
            "th": self.rows(self.th + [self.unused] * (self.clients - len(self.th))),
            "d": self.rows([self.d.get(k, zeros) for k in range(self.clients)]),
            "of": torch.tensor(self.of).double(),
            "has": torch.tensor([float(k in self.d) for k in range(self.clients)]),
        }

    def sent_to(self, k: int) -> Weights:
        return self.w | self.th[self.of[k]]

    def merge(self, replies: list[Reply]) -> Weights:
        for r in replies:
            self.d[r.k] = {n: r.w[n] - self.sent_to(r.k)[n] for n in self.learned}
        if self.t > self.first:
            for c in range(len(self.th)):
                self.divide(c, [k for k in sorted(self.d) if self.of[k] == c])
        for c in range(len(self.th)):
            here = [r for r in replies if self.of[r.k] == c]
            n_c = sum(r.n for r in here)
            if here:
                self.th[c] = {n: sum(r.n / n_c * r.w[n] for r in here) for n in here[0].w}  # type: ignore[misc]
        return super().merge(replies)

    def divide(self, c: int, members: list[int]) -> None:
        flat = {k: torch.cat([t.flatten() for t in self.d[k].values()]) for k in members}
        if len(members) < 3 or sum(flat.values()).norm() / len(members) >= self.still:  # type: ignore[union-attr]
            return
        if max(float(v.norm()) for v in flat.values()) <= self.moving:
            return
        unit = {k: v / v.norm() for k, v in flat.items()}
        ways = [
            leaving
            for size in range(1, len(members))
            for leaving in combinations(members, size)
            if members[0] not in leaving
        ]
        between = {w: max(float(unit[i] @ unit[j]) for i in w for j in set(members) - set(w)) for w in ways}
        leaving = min(ways, key=lambda way: between[way])
        if ((1 - between[leaving]) / 2) ** 0.5 > self.gap:
            self.th.append(dict(self.th[c]))
            for k in leaving:
                self.of[k] = len(self.th) - 1

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.note()


def test_a_shortened_run_splits_at_the_same_share_of_its_rounds() -> None:
    """If `first` stayed 20, a row of CFL in a table shortened to 20 rounds would have FedAvg's numbers."""
    assert Engine(first=20).paced(100, 20).first == 4
    assert Engine(first=0, still=0.1).paced(100, 20) == Engine(first=0, still=0.1)


@checked(Case())
# Three clusters and momentum
@checked(Case(momentum=0.9), clusters=3)
class IFCA(FedAvg):
    """IFCA (Ghosh et al., NeurIPS 2020, algorithm 1 with model averaging).

        j_k = argmin_j F_k(th_j);    th_k = local SGD from th_j;    th_j <- mean of th_k over the clients with j_k
        = j
    The models begin as th_0 and as th_0 with each tensor's numbers in another order. Nobody trains the mean of
    all replies.
    """

    part = "ifca"
    weighting = "equal"
    clusters = 2

    def begin(self) -> None:
        self.models = [dict(self.w) for _ in range(self.clusters)]
        for j in range(1, self.clusters):
            for n, t in self.w.items():
                order = torch.randperm(t.numel(), generator=self.given.generator("ifca", n, j))
                self.models[j][n] = t.flatten()[order].reshape(t.shape)
        self.tell()

    def tell(self) -> None:
        self.slice = {"models": {n: torch.stack([th[n] for th in self.models]) for n in self.w}}

    def nearest(self, k: int) -> int:
        rows = self.given.rows(k)
        losses = [float(cross_entropy(self.evaluated(w, self.x[rows])[0], self.y[rows])) for w in self.models]
        return losses.index(min(losses))

    def client(self, k: int) -> Client:
        c = super().client(k)
        c.start = self.models[self.nearest(k)]
        loaded(c.model, c.start)
        return c

    def leave(self, c: Client) -> Tree:
        return {"took": self.nearest(c.k)}

    def merge(self, replies: list[Reply]) -> Weights:
        for j in range(self.clusters):
            members = [r.w for r in replies if r.shared["took"] == j]
            if members:
                self.models[j] = {n: torch.stack([w[n] for w in members]).mean(0) for n in self.w}
        self.tell()
        return self.weighted_mean(replies)

    def answers(self) -> dict[int, Tensor]:
        own = {
            k: self.evaluated(self.models[self.nearest(k)], self.tests_of(k))[0] for k in range(self.clients)
        }
        return own | super().answers()


@checked(Case("cnn", 0.9), others=0.8, lam=0.5, sigma=3.0)
class FedAMP(Dispatched):
    """FedAMP (Huang et al., AAAI 2021): u_k = sum_j xi_kj v_j, and client k minimises f_k(w) + lam/2 |w - u_k|^2
    from v_k.

    A(d) = 1 - e^(-d / sigma), so that xi_kj = alpha A'(|v_k - v_j|^2) = alpha / sigma e^(-|v_k - v_j|^2 / sigma),
    and xi_kk = 1 - sum_j xi_kj.   alpha = others sigma / (K - 1).   Distances are those of parameters, not of
    statistics.
    """

    part = "fedamp"
    others = 0.5
    sigma = 1.0
    lam = 1.0

    def begin(self) -> None:
        self.v = [dict(self.w) for _ in range(self.clients)]
        self.server([], self.w)

    def sent_to(self, k: int) -> Weights:
        return {n: self.slice["u"][n][k] for n in self.w}

    def arrive(self, c: Client) -> None:
        loaded(c.model, self.own(c.k))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        away = torch.stack(
            [(p - self.sent_to(c.k)[n]).pow(2).sum() for n, p in c.model.named_parameters()]
        ).sum()
        return super().loss(c, seen) + self.lam / 2 * away

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        return {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.v[r.k] = r.w
        mixed: list[Weights] = []
        for k in range(self.clients):
            alpha = self.others * self.sigma / (self.clients - 1)
            xi = [alpha / self.sigma * math.exp(-self.apart(k, j) / self.sigma) for j in range(self.clients)]
            xi[k] = 1 - (sum(xi) - xi[k])
            mixed.append({n: sum(x * v[n] for x, v in zip(xi, self.v)) for n in self.w})  # type: ignore[misc]
        self.slice = {"v": self.rows(self.v), "u": self.rows(mixed)}

    def apart(self, k: int, j: int) -> float:
        return sum(float((self.v[k][n] - self.v[j][n]).pow(2).sum()) for n in self.learned)

    def own(self, k: int) -> Weights:
        return self.private[k]["w"] if k in self.private else self.sent_to(k)


def test_a_client_without_samples_sends_back_its_mixture() -> None:
    """Of three, the last one: in round 2 its model is u_2 of round 1, 2 * 0.25 / e of the others' 1."""
    fed = SimpleNamespace(clients=3, shared=("w",), sizes=np.array([1, 1, 0]))
    s = {"v": {"w": torch.zeros(3, 1)}, "u": {"w": torch.zeros(3, 1)}}
    replies = Ups.of([Sent(k, 1.0, {"w": torch.ones(1)}) for k in (0, 1)], 1)
    s = EngineOfFedamp().server(s, replies, fed)  # type: ignore[arg-type]
    u = s["u"]["w"][2]
    torch.testing.assert_close(u, torch.tensor([0.5 / math.e]))
    torch.testing.assert_close(EngineOfFedamp().server(s, replies, fed)["v"]["w"][2], u)  # type: ignore[arg-type]


@checked(Case("cnn", 0.9), eta=20.0, first=2, blocks=2)
class FedALA(FedAvg):
    """FedALA (Zhang et al., AAAI 2023, eq. 4 and 5): th = v + (w - v) W for the last blocks, W <- clip(W - eta
    grad (w - v)) first.

    v is what the client trained last. W begins at 1 and goes on from round to round. A client that is new has v =
    w.
    """

    part = "fedala"
    eta = 1.0
    first = 10
    blocks = 1

    @property
    def mixed(self) -> list[str]:
        """Parameters of the last blocks, of which the head is the last."""
        last = [name for name, _ in self.module.named_children()][-self.blocks :]
        return [n for n, _ in self.module.named_parameters() if n.partition(".")[0] in last]

    def arrive(self, c: Client) -> None:
        self.private.setdefault(
            c.k, {"w": dict(self.w), "W": {n: torch.ones_like(self.w[n]) for n in self.mixed}, "rounds": 0}
        )
        self.private[c.k]["W"] = self.fitted(c.k)
        loaded(c.model, self.begun(c.k, self.private[c.k]["W"]))

    def begun(self, k: int, W: Weights) -> Weights:
        v = self.private[k]["w"]
        return self.w | {n: v[n] + (self.w[n] - v[n]) * W[n] for n in self.mixed}

    def fitted(self, k: int) -> Weights:
        W, v = self.private[k]["W"], self.private[k]["w"]
        for _ in range(self.first if self.private[k]["rounds"] == 1 else 1):
            for rows in self.given.rows(k).split(self.case.batch):
                model = self.model_with(self.begun(k, W)).eval()
                cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                g = {n: p.grad for n, p in model.named_parameters()}
                W = {n: (W[n] - self.eta * g[n] * (self.w[n] - v[n])).clamp(0, 1) for n in self.mixed}  # type: ignore[operator]
        return W

    def leave(self, c: Client) -> Tree:
        self.private[c.k] |= {"w": c.weights, "rounds": self.private[c.k]["rounds"] + 1}
        return {}

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.begun(k, self.fitted(k)) for k in self.private}
        return super().answers() | {k: self.evaluated(w, self.tests_of(k))[0] for k, w in own.items()}


@checked(Case("cnn", 0.9), lam=0.3)
# A learned relation
@checked(Case(lr=0.02), relation="learned", lam=0.02, ridge=0.1)
class FedMTL(Dispatched):
    """FedMTL (Smith et al., NeurIPS 2017), by steps on the primal: sum_k F_k(w_k) + lam tr(W O W').

    O = I - 11'/K, or trace(S) S^-1 with S = (W'W + r)^(1/2): client k descends its terms, all other models as
    they were last.
    """

    part = "fedmtl"
    lam = 0.1
    relation = "mean"
    ridge = 0.01

    def begin(self) -> None:
        self.own_w = [dict(self.w) for _ in range(self.clients)]
        self.server([], self.w)

    def sent_to(self, k: int) -> Weights:
        return self.own_w[k]

    def loss(self, c: Client, seen: Pass) -> Tensor:
        tied = torch.zeros(()).double()
        for j, w_j in enumerate(self.own_w):
            for n, p in c.model.named_parameters():
                tied = tied + self.O[c.k, j] * (p * (p if j == c.k else 2 * w_j[n])).sum()
        return super().loss(c, seen) + self.lam * tied

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.own_w[r.k] = r.w
        K = self.clients
        W = torch.stack([torch.cat([w[n].flatten() for n in self.learned]) for w in self.own_w])
        self.O = torch.eye(K).double() - 1 / K
        if self.relation == "learned":
            gram = W @ W.T
            u, s, _ = torch.linalg.svd(gram + self.ridge * gram.trace() / K * torch.eye(K))
            S = u @ s.sqrt().diag() @ u.T
            self.O = S.trace() * torch.linalg.inv(S)
        apart = self.O - self.O.diagonal().diag()
        u = [{n: sum(a * w[n] for a, w in zip(row, self.own_w)) for n in self.learned} for row in apart]
        self.slice = {"w": self.rows(self.own_w), "u": self.rows(u), "o": self.O.diagonal()}  # type: ignore[arg-type]


def test_a_client_without_samples_is_where_its_terms_are_least() -> None:
    """The last of three: it stayed at the first model, 0, and drew the others there for good; its minimum is
    their mean."""
    fed = SimpleNamespace(clients=3, shared=("w",), sizes=np.array([1, 1, 0]))
    s = EngineOfFedmtl().slice_of({"w": torch.zeros(3, 1)}, fed)  # type: ignore[arg-type]
    replies = Ups.of([Sent(k, 1.0, {"w": torch.full((1,), float(k + 1))}) for k in (0, 1)], 1)
    for expected in (0.0, 1.5):
        s = EngineOfFedmtl().server(s, replies, fed)  # type: ignore[arg-type]
        torch.testing.assert_close(s["w"]["w"].flatten(), torch.tensor([1.0, 2.0, expected]))


@checked(Case("cnn", 0.9), tau=0.3, beta=4.0)
class FedCAC(Dispatched):
    """FedCAC (Wu et al., ICCV 2023, eq. 5 to 9): critical weights from clients with the same ones, all others
    from everybody.

    c = |(w_k - w_k0) w_k| by tensor; its largest floor(tau N) are M_k.   O_kj = 1 - |M_k - M_j| / (2 |M_k|)
    v_k = mean of w_j over j = k and O_kj >= mean O + t / beta (max O - mean O).   Client k is sent M_k v_k + (1 -
    M_k) w.
    """

    part = "fedcac"
    tau = 0.5
    beta = 0.0

    def begin(self) -> None:
        self.M = [
            {n: torch.zeros_like(self.w[n], dtype=torch.bool) for n in self.learned}
            for _ in range(self.clients)
        ]
        self.v = [{n: self.w[n] for n in self.learned} for _ in range(self.clients)]
        self.note()

    def note(self) -> None:
        self.slice = {"M": self.rows(self.M), "v": self.rows(self.v)}

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: torch.where(self.M[k][n], self.v[k][n], self.w[n]) for n in self.learned}

    def merge(self, replies: list[Reply]) -> Weights:
        for r in replies:
            sent = self.sent_to(r.k)
            self.M[r.k] = {n: self.largest(((r.w[n] - sent[n]) * r.w[n]).abs()) for n in self.learned}
        masks = {r.k: torch.cat([m.flatten() for m in self.M[r.k].values()]).double() for r in replies}
        like = {
            (k, j): float(1 - (masks[k] - masks[j]).abs().sum() / (2 * masks[k].sum()))
            for k in masks
            for j in masks
            if k != j
        }
        mean, most = sum(like.values()) / len(like), max(like.values())
        bound = mean + self.t / (self.beta or self.case.rounds / 3) * (most - mean)
        for k in masks:
            friends = [r for r in replies if r.k == k or like[k, r.k] >= bound]
            self.v[k] = {n: sum(r.w[n] for r in friends) / len(friends) for n in self.learned}  # type: ignore[misc]
        return super().merge(replies)

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.note()

    def largest(self, c: torch.Tensor) -> torch.Tensor:
        N = c.numel()
        at = (
            c.flatten().sort(descending=True).values[int(self.tau * N) - 1]
            if int(self.tau * N)
            else torch.inf
        )
        return c >= (at if at > 1e-10 else c[c > 1e-10].min())


def test_a_third_of_the_rounds() -> None:
    """Of three, so that all are alone from the first on; a shorter run of a table keeps the share of it."""
    agree(Case(), FedCAC)
    assert EngineOfFedcac(beta=100).paced(500, 20).beta == 4


def test_where_most_numbers_did_not_move_those_that_did_are_critical() -> None:
    """Also nothing at all where none moved, and none of a tensor of one number, of which half is none."""
    moved, w = torch.tensor([[0.0, 0, 0, 2], [3, 1, 2, 4], [0, 0, 0, 0]]), torch.ones(3, 4)
    assert EngineOfFedcac().critical(moved, w).int().tolist() == [[0, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0]]
    assert not EngineOfFedcac().critical(moved[:, 3:], w[:, 3:]).any()


def test_one_client_alone_collaborates_with_itself() -> None:
    assert EngineOfFedcac().collaborators(torch.ones(1, 5), 1).tolist() == [[1.0]]


# Two of up to four models each; rounds 1 and 4 lie before and after all have sent one.
@checked(Case("cnn", 0.9, attendance=((0, 1, 3), (1, 2, 3, 4), (0, 1, 2, 4))), models=2, explore=0.0)
class FedFomo(Dispatched):
    """FedFomo (Zhang et al., ICLR 2021, eq. 3 to 5): a_kj = (L_k(th_k) - L_k(th_j)) / |th_j - th_k|, th_k <- th_k
    + sum a+ (th_j - th_k) / sum a+.

    The server sends client k the M models with the largest P_kj, and adds a_kj to P_kj. Models are those that
    clients sent last.
    """

    part = "fedfomo"
    models = 5
    explore = 0.3

    def begin(self) -> None:
        self.th = [dict(self.w) for _ in range(self.clients)]
        self.P = torch.zeros(self.clients, self.clients).double()
        self.has: set[int] = set()
        self.note()

    def note(self) -> None:
        has = torch.tensor([float(k in self.has) for k in range(self.clients)])
        self.slice = {
            "v": self.rows(self.th),
            "P": self.P.clone(),
            "has": has,
            "t": torch.tensor(float(self.t)),
        }

    def sent_to(self, k: int) -> Weights:
        return dict(self.th[k])

    def most_wanted(self, k: int) -> list[int]:
        """Without exploring."""
        there = sorted(self.has - {k})
        return sorted(there, key=lambda j: -float(self.P[k, j]))[: self.models]

    def arrive(self, c: Client) -> None:
        own, mixed, rows = self.th[c.k], dict(self.th[c.k]), self.given.rows(c.k)
        loss = {
            j: float(cross_entropy(self.evaluated(self.th[j], self.x[rows])[0], self.y[rows]))
            for j in self.has
        }
        self.a = {}
        if others := self.most_wanted(c.k):
            mine = float(cross_entropy(self.evaluated(own, self.x[rows])[0], self.y[rows]))
            for j in others:
                apart = sum(float((self.th[j][n] - own[n]).pow(2).sum()) for n in self.learned) ** 0.5
                self.a[j] = (mine - loss[j]) / (apart + 1e-5)
        positive = {j: a for j, a in self.a.items() if a > 0}
        for j, a in positive.items():
            for n in own:
                mixed[n] = mixed[n] + a / sum(positive.values()) * (self.th[j][n] - own[n])
        loaded(c.model, mixed)

    def leave(self, c: Client) -> Tree:
        return {"a": dict(self.a)}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.th[r.k] = r.w
            for j, a in r.shared["a"].items():
                self.P[r.k, j] += a
        self.has |= {r.k for r in replies}
        self.note()


@checked(Case("cnn", 0.9), rate=0.02, mu=3.0, until=0.9)
# Steps as in the paper
@checked(Case(), rate=0.02, scaled=False)
class APPLE(Dispatched):
    """APPLE (Luo & Wu, IJCAI 2022, eq. 5 to 8): W = sum_j p_j w_j; w_k and q = p - n_j / n descend F(W) + mu / 2
    lam(r) |q|^2.

    Core models are those that clients sent last. lam(r) = (cos(pi r / R) + 1) / 2 before round R = until T, then
    0.
    """

    part = "apple"
    rate = 0.001
    mu = 0.2
    until = 0.1
    scaled = True

    def begin(self) -> None:
        self.first = torch.tensor(SIZES).double() / sum(SIZES)
        self.cores = [{n: t for n, t in self.w.items() if n != "apple.q"} for _ in SIZES]
        self.slice = {"w": self.rows(self.cores)}

    def keeps(self, name: str) -> bool:
        return name == "apple.q"

    def sent_to(self, k: int) -> Weights:
        return self.w | self.cores[k]

    def mixed(self, k: int, core: Weights, p: Tensor) -> Weights:
        cores = [core if j == k else self.cores[j] for j in range(self.clients)]
        return {n: sum(p[j] * w[n] for j, w in enumerate(cores)) for n in self.learned}  # type: ignore[misc]

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The step's gradient is taken at W; the core model waits."""
        self.core = {n: p.detach().clone() for n, p in c.model.named_parameters()}
        with torch.no_grad():
            for n, t in self.mixed(c.k, self.core, self.first + c.extra["apple.q"]).items():
                dict(c.model.named_parameters())[n].copy_(t)
        return x, y

    def gradient(self, c: Client) -> None:
        q_k, along = c.extra["apple.q"], torch.zeros(self.clients).double()
        for n, q in c.model.named_parameters():
            assert q.grad is not None
            for j in range(self.clients):
                along[j] += (q.grad * (self.core[n] if j == c.k else self.cores[j][n])).sum()
            q.copy_(self.core[n])
            q.grad *= (self.first + q_k)[c.k] * (self.clients if self.scaled else 1)
        r, R = self.t - 1, self.until * self.case.rounds
        lam = (math.cos(math.pi * r / R) + 1) / 2 if r < R else 0
        q_k.grad = self.rate / c.lr * (along + self.mu * lam * q_k.detach())

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.cores[r.k] = r.w
        self.slice = {"w": self.rows(self.cores)}

    def answers(self) -> dict[int, Tensor]:
        """Whoever was there has shares of its own."""
        own = {
            k: self.cores[k] | self.mixed(k, self.cores[k], self.first + kept["apple.q"])
            for k, kept in self.kept.items()
        }
        return {k: self.evaluated(w, self.tests_of(k))[0] for k, w in own.items()}


@checked(Case("cnn", 0.9), warm=0.34)
class PFedSim(Dispatched):
    """pFedSim (Tan et al. 2023): after a warm-up by FedAvg, phi_kj = -ln(1 - cos of the heads), and the body is
    sum_j phi_kj theta_j.

    The head that client k is sent is its own. After the warm-up the common model stays as it is, and a client
    that has not trained since is sent it.
    """

    part = "pfedsim"
    warm = 0.5

    def begin(self) -> None:
        self.theta: dict[int, Weights] = {}
        self.note()

    @property
    def warming(self) -> bool:
        return self.t <= self.warm * self.case.rounds

    def sent_to(self, k: int) -> Weights:
        if k not in self.theta:
            return self.w
        phi = self.phi(k)
        body = {
            n: sum(p * self.theta[j][n] for j, p in phi.items()) for n in self.w if not n.startswith("head.")
        }
        return self.theta[k] | body  # type: ignore[return-value]

    def phi(self, k: int) -> dict[int, float]:
        s = {j: -math.log(1 - self.alike(k, j)) for j in self.theta}
        return {j: x / sum(s.values()) for j, x in s.items()}

    def alike(self, k: int, j: int) -> float:
        one, other = self.theta[k]["head.weight"], self.theta[j]["head.weight"]
        cosines = [float(a @ b / a.norm() / b.norm()) for a, b in zip(one, other)]
        return 0.9999 if k == j else min(0.9999, max(0.0, sum(cosines) / len(cosines)))

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        if self.warming:
            return super().merge(replies)
        self.theta |= {r.k: r.w for r in replies}
        return self.w

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.note()

    def note(self) -> None:
        """The engine's slice: zeros for a client without an own model, which is like no other and itself."""
        K, nothing = range(self.clients), {n: torch.zeros_like(t) for n, t in self.w.items()}
        phi = torch.eye(self.clients).double()
        for k in K if self.theta else ():
            row = self.phi(k) if k in self.theta else {}
            phi[k] = torch.tensor([row.get(j, 0.0) for j in K]) if row else 0
        has = torch.tensor([float(k in self.theta) for k in K])
        self.slice = {"theta": self.rows([self.theta.get(k, nothing) for k in K]), "has": has, "phi": phi}

    def own(self, k: int) -> Weights:
        if self.warming:
            return self.w
        return self.private[k]["w"] if k in self.private else self.sent_to(k)


@checked(Case("cnn", 0.9), embed=2, hidden=5, layers=1, rate=0.3, clip=0.01)
class PFedHN(Dispatched):
    """pFedHN (Shamsian et al., ICML 2021, algorithm 1): phi <- phi - a (d theta_k / d phi)^T (theta_k -
    theta~_k), for the mean of replies.

    h is nn.Linear on an embedding, ReLU and nn.Linear between hidden layers, and nn.Linear for every tensor of
    the model; torch's SGD, with clipped gradients, trains it.
    """

    part = "pfedhn"
    weighting = "equal"
    embed = 0
    hidden = 100
    layers = 3
    rate = 0.01
    clip = 50.0

    def begin(self) -> None:
        draw, E = self.given.generator("pfedhn", "network"), self.embed or 1 + self.clients // 4
        self.e = nn.Parameter(torch.randn(self.clients, E, generator=draw).double())
        self.mlp = [self.linear(E, self.hidden, draw)] + [
            self.linear(self.hidden, self.hidden, draw) for _ in range(self.layers)
        ]
        self.out = {n: self.linear(self.hidden, self.w[n].numel(), draw) for n in self.learned}
        every = [self.e, *(p for layer in (*self.mlp, *self.out.values()) for p in layer.parameters())]
        self.sgd = torch.optim.SGD(every, self.rate, momentum=0.9, weight_decay=0.001)
        self.note()

    def linear(self, columns: int, rows: int, draw: torch.Generator) -> nn.Linear:
        layer, drawn = nn.Linear(columns, rows).double(), torch.rand(rows, columns + 1, generator=draw)
        with torch.no_grad():
            layer.weight.copy_((2 * drawn[:, :-1] - 1) / columns**0.5)
            layer.bias.copy_((2 * drawn[:, -1] - 1) / columns**0.5)
        return layer

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: t.detach() for n, t in self.h(k).items()}

    def h(self, k: int) -> Weights:
        a = self.mlp[0](self.e[k])
        for layer in self.mlp[1:]:
            a = layer(torch.relu(a))
        return {n: self.out[n](a).view(self.w[n].shape) for n in self.learned}

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.sgd.zero_grad()
        for r in replies:
            made = self.h(r.k)
            delta = [(made[n].detach() - r.w[n]) / len(replies) for n in self.learned]
            torch.autograd.backward(list(made.values()), delta)
        every = [p for group in self.sgd.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(every, self.clip)
        self.sgd.step()
        self.note()

    def note(self) -> None:
        def tree(read: object) -> Weights:
            def of(layer: nn.Linear) -> Tensor:
                return torch.cat([read(layer.weight), read(layer.bias)[:, None]], 1)  # type: ignore[operator]

            hidden = {str(i): of(layer) for i, layer in enumerate(self.mlp)}
            out = {n: of(layer) for n, layer in self.out.items()}
            return {"embed": read(self.e), "hidden": hidden, "out": out}  # type: ignore[operator, dict-item]

        self.slice = {"net": tree(lambda p: p.detach().clone()), "v": tree(self.velocity)}

    def velocity(self, p: nn.Parameter) -> Tensor:
        held = self.sgd.state[p].get("momentum_buffer")
        return torch.zeros_like(p.detach()) if held is None else held.clone()


LAYER = "head"


class Hyper(nn.Module):
    def __init__(self, e: Tensor, hidden: list[nn.Linear], out: dict[str, nn.Linear]) -> None:
        super().__init__()
        self.e, self.hidden, self.names = nn.Parameter(e), nn.ModuleList(hidden), list(out)
        self.out = nn.ModuleList(out.values())

    def forward(self, k: int) -> dict[str, list[Tensor]]:
        a = self.e
        for layer in self.hidden:
            a = torch.relu(layer(a))
        said = {n: torch.relu(layer(a)) for n, layer in zip(self.names, self.out)}
        return {
            n: (
                [x / o.sum() for x in o]
                if o.sum() > 0
                else [torch.tensor(float(j == k)).double() for j in range(len(o))]
            )
            for n, o in said.items()
        }


# Pfedla
@checked(*CASES, embed=3, hidden=6, layers=2, rate=0.3)
class Oracle(Dispatched):
    """pFedLA (Ma et al., CVPR 2022): theta_k sent = sum_j alpha_kj theta_j layer by layer, alpha by client k's
    own hypernetwork.

    Each client's hypernetwork is nn.Linear and ReLU three times on an embedding, then one nn.Linear with a ReLU
    for every layer of the model; torch's SGD moves it by what training changed.
    """

    part = "pfedla"
    embed = 100
    hidden = 100
    layers = 3
    rate = 0.005

    def begin(self) -> None:
        self.theta = [dict(self.w) for _ in range(self.clients)]
        self.nets = [self.network(k) for k in range(self.clients)]
        self.note()

    def network(self, k: int) -> Hyper:
        draw, H, E = self.given.generator("pfedla", "network", k), self.hidden, self.embed
        e = torch.randn(E, generator=draw).double()
        hidden = []
        for columns in [E] + [H] * (self.layers - 1):
            hidden.append(linear((2 * torch.rand(H, columns + 1, generator=draw) - 1) / columns**0.5))
        out = {}
        for name in dict.fromkeys(n.rpartition(".")[0] for n in self.w):
            drawn = torch.rand(self.clients, H, generator=draw)
            out[name] = linear(torch.cat([drawn, torch.zeros(self.clients, 1)], 1))
        return Hyper(e, hidden, out)

    def sent_to(self, k: int) -> Weights:
        return {n: t.detach() for n, t in self.made(k).items()}

    def made(self, k: int) -> Weights:
        alpha = self.nets[k](k)
        return {
            n: sum(a * self.theta[j][n] for j, a in enumerate(alpha[n.rpartition(".")[0]]))  # type: ignore[misc]
            for n in self.w
        }

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": c.weights}
        return {}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            sgd, made = torch.optim.SGD(self.nets[r.k].parameters(), self.rate), self.made(r.k)
            sgd.zero_grad()
            change = {n: made[n].detach() - r.w[n] for n in self.learned if made[n].requires_grad}
            if change:
                torch.autograd.backward([made[n] for n in change], list(change.values()))
                sgd.step()
        for r in replies:
            self.theta[r.k] = r.w
        self.note()

    def note(self) -> None:
        def tree(net: Hyper) -> Tree:
            of = {n: matrix(layer) for n, layer in zip(net.names, net.out)}
            hidden = {str(i): matrix(layer) for i, layer in enumerate(net.hidden)}
            return {"embed": net.e.detach().clone(), "hidden": hidden, "out": of}

        self.slice = {"theta": self.rows(self.theta), "net": together([tree(net) for net in self.nets])}

    def own(self, k: int) -> Weights:
        return self.private[k]["w"] if k in self.private else self.sent_to(k)


def linear(drawn: Tensor) -> nn.Linear:
    layer = nn.Linear(drawn.shape[1] - 1, drawn.shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(drawn[:, :-1])
        layer.bias.copy_(drawn[:, -1])
    return layer


def matrix(layer: nn.Linear) -> Tensor:
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach()


def together(trees: list[Tree]) -> Tree:
    first = trees[0]
    return {
        n: torch.stack([t[n] for t in trees]) if isinstance(v, Tensor) else together([t[n] for t in trees])
        for n, v in first.items()
    }


def net(bias: list[float]) -> Tree:
    """One unit that says 1, and from it o = bias + (1, 0)."""
    return {
        "embed": torch.tensor([1.0]),
        "hidden": {"0": torch.tensor([[1.0, 0.0]])},
        "out": {LAYER: torch.tensor([[1.0, bias[0]], [0.0, bias[1]]])},
    }


def test_pfedla_a_client_without_samples_sends_back_its_mixture() -> None:
    """Client 1 of two was sent (0 + 4) / 2. It counted with 4, the model it began with, for good."""
    theta = {"head.weight": torch.tensor([[0.0], [4.0]])}
    s = {"theta": theta, "net": together([net([1.0, 2.0]), net([1.0, 2.0])])}
    fed = SimpleNamespace(shared=("head.weight",), sizes=np.array([1, 0]))
    part = PFedLA(embed=1, hidden=1, layers=1)
    replies = Ups.of([Sent(0, 1.0, {"head.weight": torch.tensor([3.0])})], 1)
    after = part.server(s, replies, fed)  # type: ignore[arg-type]
    assert after["theta"]["head.weight"].flatten().tolist() == [3, 2]


NEVER = -200.0


class Bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r: Tensor) -> Tensor:
        ctx.save_for_backward(r)
        return torch.where(r >= 0, 1.0, 0.0).to(r)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (r,) = ctx.saved_tensors
        return g / (1 + torch.exp(-r)) / (1 + torch.exp(r))


class Layer(nn.Module):
    """A linear layer or convolution under a mask."""

    def __init__(self, layer: nn.Linear | nn.Conv2d):
        super().__init__()
        self.fixed, self.fedmask = nn.Parameter(layer.weight.detach()), nn.Parameter(layer.weight.detach())
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        weight = self.fixed * Bit.apply(self.fedmask)
        return (
            F.linear(x, weight, self.bias) if weight.dim() == 2 else F.conv2d(x, weight, self.bias, padding=1)
        )


class FedMask(Dispatched):
    """FedMask (Li et al., SenSys 2021, eq. 2 to 10 and algorithm 1).

        y = (W m) x,  m_ij = [m_r,ij >= 0];   dL/dm_r = sigma(m_r) (1 - sigma(m_r)) dL/dm;   L + lam sum_g |m_g|
    Before round 1 an epoch of SGD on m_r; of the last layers the share `keep` with the largest change of W m_r
    stays, by client. The server averages each element over those that have it and answered, as a bit, ties 0;
    clients go on from +start, -start.
    """

    part = "fedmask"
    weighting = "equal"
    keep = 0.2
    layers = 2
    lam = 2e-4
    start = 0.0003

    def model(self) -> nn.Sequential:
        module = model_named(self.case.model)
        for parent in [module, *module]:
            for name, layer in list(parent.named_children()):
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    setattr(parent, name, Layer(layer))
        return module

    def freezes(self, name: str) -> bool:
        return "running" not in name and not name.endswith("fedmask")

    @property
    def pruned(self) -> list[str]:
        """In the order of the layers."""
        return [n for n, _ in self.module.named_parameters() if n.endswith("fedmask")][-self.layers :]

    def begin(self) -> None:
        self.kept = {}
        self.has = [{n: torch.ones_like(self.w[n]) for n in self.pruned} for _ in range(self.clients)]

    def exchange(self, cohort: list[int]) -> None:
        if self.t:
            return
        for k in cohort:
            moved = self.one_epoch(k)
            for n in self.pruned:
                size = (self.w[n.replace("fedmask", "fixed")] * moved[n]).abs()
                bound = size.flatten().sort(descending=True).values[round(self.keep * size.numel()) - 1]
                self.has[k][n] = (size >= bound).double()
        self.slice = {"kept": self.rows(self.has)}

    def one_epoch(self, k: int) -> Weights:
        """How far the real-valued masks of client k move."""
        model, rows = self.model_with(self.w), self.given.rows(k)
        parameters = {n: p for n, p in model.named_parameters() if n.endswith("fedmask")}
        with evaluating(model):
            for batch in self.given.sample(k, len(rows), "fedmask").split(self.case.batch):
                loss = cross_entropy(split_forward(model, self.x[batch])[0], self.y[batch])
                with torch.no_grad():
                    for p, g in zip(parameters.values(), torch.autograd.grad(loss, [*parameters.values()])):
                        p -= self.case.lr * g
        return {n: p.detach() - self.w[n] for n, p in parameters.items()}

    def sent_to(self, k: int) -> Weights:
        return self.w | {n: torch.where(has > 0, self.w[n], NEVER) for n, has in self.has[k].items()}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        groups = torch.zeros(())
        for name, p in c.model.named_parameters():
            if name.endswith("fedmask"):
                m = Bit.apply(p)
                for group in [*m, *m.transpose(0, 1)]:
                    if float(group.detach().sum()):
                        groups = groups + group.norm()
        return super().loss(c, seen) + self.lam * groups

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"w": {n: t for n, t in c.weights.items() if not n.endswith("fixed")}}
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        merged = self.weighted_mean(replies)
        for n in self.learned:
            whole = torch.ones_like(self.w[n])
            have = {r.k: self.has[r.k].get(n, whole) for r in replies}
            ones = sum(have[r.k] * (r.w[n] >= 0) for r in replies)
            mean = torch.as_tensor(ones) / sum(have.values())  # NaN where nobody has it
            bit = torch.where(mean > 0.5, self.start, -self.start)
            merged[n] = torch.where(mean.isnan(), self.w[n], bit)
        return merged

    def own(self, k: int) -> Weights:
        mine = self.private.get(k, {}).get("w", {})
        return self.sent_to(k) | mine


@on_both_models
def test_fedmask(case: Case) -> None:
    agree(case, FedMask, atol=3e-4, start=0.003, lam=0.01)  # numbers reach 200, and bits differ by 0.006


test_agreement = agreement_test(globals())
