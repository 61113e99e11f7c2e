"""Oracles of methods that merge in another way: server optimisers, fairness, and robust rules."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import CASES, Dispatched, agree, agreement_test, checked
from tests.oracles.plain import (
    CLASSES,
    SIZES,
    Case,
    Client,
    FedAvg,
    Pass,
    Reply,
    Tree,
    Weights,
    cross_entropy,
)
from unskew.core.replies import Reply as Sent
from unskew.core.replies import Ups
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.dfedavg import DFedAvg as Engine


@checked(*CASES, beta=0.7, lr=0.5)
@checked(Case())
class FedAvgM(FedAvg):
    """FedAvgM (Hsu, Qi & Brown 2019): momentum at the server.

        Delta = w_t - sum_k p_k w_k;    v <- beta v + Delta;    w_{t+1} = w_t - lr v
    Running statistics of batch normalisation take the plain mean.
    """

    part = "fedavgm"
    beta = 0.9
    lr = 1.0

    def begin(self) -> None:
        self.slice = {"v": {n: torch.zeros_like(self.w[n]) for n in self.learned}}

    def merge(self, replies: list[Reply]) -> Weights:
        w = self.weighted_mean(replies)
        for n, v in self.slice["v"].items():
            delta = self.w[n] - w[n]
            v.mul_(self.beta).add_(delta)
            w[n] = self.w[n] - self.lr * v
        return w


@checked(Case("cnn"), tau=0.1, lr=0.2)
class FedAdam(FedAvg):
    """FedOpt (Reddi et al., ICLR 2021, algorithm 2), with clients weighted by size.

        Delta = sum_k p_k (w_k - w_t);    m = beta1 m + (1 - beta1) Delta
        Adagrad  v = v + Delta^2;    Yogi  v = v - (1 - beta2) Delta^2 sign(v - Delta^2);    Adam  v = beta2 v +
        (1 - beta2) Delta^2 w_{t+1} = w_t + eta m / (sqrt(v) + tau),    v_{-1} = tau^2
    Running statistics of batch normalisation take the plain mean.
    """

    part = "fedadam"
    lr = 0.01
    beta1 = 0.9
    beta2 = 0.99
    tau = 0.001
    rule = "adam"

    def begin(self) -> None:
        zeros = {n: torch.zeros_like(self.w[n]) for n in self.learned}
        self.slice = {"m": zeros, "v": {n: z + self.tau * self.tau for n, z in zeros.items()}}

    def merge(self, replies: list[Reply]) -> Weights:
        w, p = self.weighted_mean(replies), self.shares_of_weight(replies)
        for n in self.learned:
            Delta = torch.zeros_like(w[n])
            for p_k, r in zip(p, replies):
                Delta += p_k * (r.w[n] - self.w[n])
            m = self.slice["m"][n] = self.beta1 * self.slice["m"][n] + (1 - self.beta1) * Delta
            v = self.slice["v"][n]
            if self.rule == "adagrad":
                v = v + Delta**2
            elif self.rule == "yogi":
                v = v - (1 - self.beta2) * Delta**2 * torch.sign(v - Delta**2)
            else:
                v = self.beta2 * v + (1 - self.beta2) * Delta**2
            self.slice["v"][n] = v
            w[n] = self.w[n] + self.lr * m / (torch.sqrt(v) + self.tau)
        return w


@pytest.mark.parametrize(("case", "rule"), [(Case("cnn", 0.9), "yogi"), (Case(), "adagrad")], ids=str)
def test_the_other_rules(case: Case, rule: str) -> None:
    agree(case, FedAdam, rule=rule, tau=0.1, beta1=0.5)


# Nothing is left of client 0, whose one sample has one class.
@checked(Case("cnn", 0.9))
# By l2
@checked(Case(), measure="l2", a=0.2)
# Weights by size where nothing is left of anybody
@checked(Case(), measure="l2", a=100.0)
class FedDisco(FedAvg):
    """FedDisco (Ye et al., ICML 2023, eq. 5 and 6): d_k between a client's label shares D_k and the uniform T.

    p_k = ReLU(n_k / n - a d_k + b) / sum_j ReLU(n_j / n - a d_j + b)
    d_k = KL(D_k || T) / sum_j KL(D_j || T), or ||D_k - T||_2; n_k / n where nothing is left of anybody
    """

    part = "feddisco"
    a = 0.5
    b = 0.1
    measure = "kl"

    def discrepancy(self, k: int) -> float:
        D = (self.y[self.given.rows(k)].sum(0) / len(self.given.rows(k))).tolist()
        if self.measure == "l2":
            return math.sqrt(sum((D_c - 1 / CLASSES) ** 2 for D_c in D))
        return sum(D_c * math.log(D_c / (1 / CLASSES)) for D_c in D if D_c > 0)

    def shares_of_weight(self, replies: list[Reply]) -> list[float]:
        p, d = super().shares_of_weight(replies), [self.discrepancy(r.k) for r in replies]
        if self.measure == "kl":
            d = [d_k / sum(d) for d_k in d]
        e = [max(0.0, p_k - self.a * d_k + self.b) for p_k, d_k in zip(p, d)]
        return [e_k / sum(e) for e_k in e] if sum(e) else p


# Without eps, two steps are longer than 1.
@checked(Case("cnn", 0.9), eps=0.0)
# Weighted by size and without the average
@checked(Case(), weighted=True, average=False)
class FedExP(FedAvg):
    """FedExP (Jhunjhunwala et al., ICLR 2023, algorithm 1): Delta_k = w_t - w_k of M clients, Delta their mean.

        eta_g = max(1, sum_k ||Delta_k||^2 / (2 M (||Delta||^2 + eps)));    w_{t+1} = w_t - eta_g Delta
    The last model is the average of w_T and w_{T-1}. Running statistics of batch normalisation take the plain
    mean.
    """

    part = "fedexp"
    weighting = "equal"
    eps = 0.001
    average = True
    weighted = False

    def merge(self, replies: list[Reply]) -> Weights:
        if self.weighted:
            self.weighting = "size"
        w, p = self.weighted_mean(replies), self.shares_of_weight(replies)

        def squared(other: Weights) -> float:
            return float(torch.cat([(self.w[n] - other[n]).flatten() for n in self.learned]).norm() ** 2)

        apart = sum(p_k * squared(r.w) for p_k, r in zip(p, replies))
        eta = max(1.0, apart / 2 / (squared(w) + self.eps))
        stepped = {n: self.w[n] - eta * (self.w[n] - w[n]) for n in self.learned}
        if self.average and self.t == self.case.rounds:
            stepped = {n: (self.w[n] + v) / 2 for n, v in stepped.items()}
        return w | stepped


@checked(*CASES)
class FedNova(FedAvg):
    """FedNova (Wang et al., NeurIPS 2020, eq. 5 and 9): normalised averaging.

        w_t - w_k = lr sum_s a_ks g_k(s):    the gradient of step s of S enters with the coefficient a_ks
        d_k = (w_t - w_k) / ||a_k||_1;    tau_eff = sum_k p_k ||a_k||_1;    w_{t+1} = w_t - tau_eff sum_k p_k d_k
    Plain SGD has a_ks = 1, momentum rho has a_ks = 1 + rho + ... + rho^(S - 1 - s). With FedProx the pull of each
    later step shrinks what came before, a_ks = (1 - lr mu)^(S - 1 - s), and tau_eff = sum_k p_k S_k, as in the
    public code. Running statistics of batch normalisation take the plain mean.
    """

    part = "fednova"

    def accumulated(self, steps: int) -> float:
        """||a_k||_1, by adding up every coefficient."""
        total = 0.0
        for s in range(steps):
            total += sum(self.case.momentum**later for later in range(steps - s))
        return total

    def effective_steps(self, replies: list[Reply], a: list[float]) -> float:
        return sum(p_k * a_k for p_k, a_k in zip(self.shares_of_weight(replies), a))

    def merge(self, replies: list[Reply]) -> Weights:
        w = self.weighted_mean(replies)
        p = self.shares_of_weight(replies)
        a = [self.accumulated(r.steps) for r in replies]
        tau = self.effective_steps(replies, a)
        for n in self.learned:
            d = [(self.w[n] - r.w[n]) / a_k for a_k, r in zip(a, replies)]
            w[n] = self.w[n] - tau * sum(p_k * d_k for p_k, d_k in zip(p, d))
        return w


class WithFedProx(FedNova):
    beside = "+fedprox"

    pull = 0.001

    def loss(self, c: Client, seen: Pass) -> Tensor:
        apart = sum(((p - c.start[n]) ** 2).sum() for n, p in c.parameters.items())
        return super().loss(c, seen) + self.pull / 2 * apart

    def accumulated(self, steps: int) -> float:
        return sum((1 - self.case.rate(self.t) * self.pull) ** later for later in range(steps))

    def effective_steps(self, replies: list[Reply], a: list[float]) -> float:
        return sum(p_k * r.steps for p_k, r in zip(self.shares_of_weight(replies), replies))


class WithStrongFedProx(WithFedProx):
    beside = "+fedprox(mu=1.0)"
    pull = 1.0


@pytest.mark.parametrize("case", [Case("mlp"), Case("cnn")], ids=lambda c: c.model)
@pytest.mark.parametrize("oracle", [WithFedProx, WithStrongFedProx])
def test_fednova_reads_the_mu_of_the_fedprox_beside_it(case: Case, oracle: type[FedNova]) -> None:
    """Fednova+fedprox ignored FedProx's mu, 46 % off at mu = 1."""
    agree(case, oracle)


def test_fednova_refuses_a_pull_with_momentum() -> None:
    """There is no closed form for both, and a mu of its own that differed from FedProx's was accepted."""
    with pytest.raises(UsageError, match=r"E108 'fednova' cannot run here: .* FedProx with momentum"):
        agree(Case("mlp", 0.9), WithFedProx)
    with pytest.raises(UsageError, match="E102 method 'fednova' has no argument 'mu'"):
        registry.parse("fednova(mu=0.5)")


@checked(Case("cnn", 0.9), moves=True)
class DFedAvg(Dispatched):
    """DFedAvg (Sun et al. 2021, algorithm 1): x_k <- mean of what k and its neighbours in a ring trained."""

    part = "dfedavg"
    moves = False

    def begin(self) -> None:
        self.z = [dict(self.w) for _ in range(self.clients)]
        self.slice = {"z": self.rows(self.z), "u": self.rows(self.z)}

    def sent_to(self, k: int) -> Weights:
        return {n: self.slice["u"][n][k] for n in self.w}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for r in replies:
            self.z[r.k] = r.w
        ring = list(range(self.clients))
        if self.moves:
            ring = torch.randperm(self.clients, generator=self.given.generator(self.t, "dfedavg")).tolist()
        u = list(self.z)
        for place, k in enumerate(ring):
            three = [self.z[ring[(place + step) % self.clients]] for step in (-1, 0, 1)]
            u[k] = {n: torch.stack([z[n] for z in three]).mean(0) for n in self.w}
        self.slice = {"z": self.rows(self.z), "u": self.rows(u)}


def test_a_client_without_samples_passes_on_what_it_is_sent() -> None:
    """Client 2 of a ring of four: it counted with the first model, 0, for good, and its neighbours came to
    2/3 at most."""
    fed = SimpleNamespace(clients=4, seed=0, sizes=np.array([1, 1, 0, 1]))
    s = {"z": {"w": torch.zeros(4, 1)}, "u": {"w": torch.zeros(4, 1)}}
    replies = Ups.of([Sent(k, 1.0, {"w": torch.ones(1)}) for k in (0, 1, 3)], 1)
    s = Engine().server(s, replies, fed)  # type: ignore[arg-type]
    torch.testing.assert_close(s["u"]["w"], torch.tensor([[1.0], [2 / 3], [2 / 3], [2 / 3]]))
    s = Engine().server(s, replies, fed)  # type: ignore[arg-type]
    torch.testing.assert_close(s["u"]["w"], torch.tensor([[1.0], [8 / 9], [8 / 9], [8 / 9]]))


def test_a_ring_of_six_and_one_that_is_shorter_than_its_links() -> None:
    W = Engine().links(6, 0, 1)
    assert W[0].nonzero().flatten().tolist() == [0, 1, 5]
    assert W[3].nonzero().flatten().tolist() == [2, 3, 4]
    torch.testing.assert_close(Engine(neighbours=2).links(3, 0, 1), torch.full((3, 3), 1 / 3).double())


@checked(Case("cnn", 0.9, lr=0.02), tau=0.3, mu=0.6)
# Compared with the most sensitive weight
@checked(Case(), over="weights")
class Elastic(FedAvg):
    """Elastic aggregation (Chen et al., CVPR 2023): w <- w + zeta (mean - w), zeta = 1 + tau - Om / max_k Om_k,
    weight by weight.

    Om_k <- mu Om_k + (1 - mu) |grad mean |z|^2| over client k's batches before it trains;    Om = sum_k n_k / n
    Om_k.
    """

    part = "elastic"
    tau = 0.5
    mu = 0.95
    over = "clients"

    def arrive(self, c: Client) -> None:
        old = self.private.get(c.k, {"omega": {n: torch.zeros_like(self.w[n]) for n in self.learned}})[
            "omega"
        ]
        for rows in self.given.rows(c.k).split(self.case.batch):
            model = self.model_with(self.w).eval()
            (model(self.x[rows]) ** 2).sum(1).mean().backward()
            g = {n: p.grad for n, p in model.named_parameters()}
            old = {n: self.mu * t + (1 - self.mu) * g[n].abs() for n, t in old.items()}  # type: ignore[union-attr]
        self.private[c.k] = {"omega": old}

    def leave(self, c: Client) -> Tree:
        return {"omega": self.private[c.k]["omega"]}

    def merge(self, replies: list[Reply]) -> Weights:
        mean, p = self.weighted_mean(replies), self.shares_of_weight(replies)
        stacked = {n: torch.stack([r.shared["omega"][n] for r in replies]) for n in self.learned}
        omega = {n: torch.einsum("k,k...->...", torch.tensor(p).double(), t) for n, t in stacked.items()}
        of_all = max(float(t.max()) for t in omega.values())
        for n, t in omega.items():
            part = torch.where(t > 0, t / (stacked[n].amax(0) if self.over == "clients" else of_all), 0.0)
            mean[n] = self.w[n] + (1 + self.tau - part) * (mean[n] - self.w[n])
        return mean


# Client 2, which is not there in round 1, has no weight left when it comes.
@checked(Case("cnn", 0.9), step=2.5)
@checked(Case())
class AFL(FedAvg):
    """AFL (Mohri et al., ICML 2019, algorithm 1, as federated comparisons run it), lambda over all clients.

    w_{t+1} = sum_k lambda_k w_k / sum_k lambda_k, of those that answered
    lambda_k <- lambda_k + gamma / K F_k(w_t) for these;    lambda <- argmin over the simplex of ||. - lambda||
    """

    part = "afl"
    step = 0.2

    def begin(self) -> None:
        self.slice = {"mixture": torch.tensor([n / sum(SIZES) for n in SIZES], dtype=torch.float64)}

    def merge(self, replies: list[Reply]) -> Weights:
        mixture = self.slice["mixture"].clone()
        total = sum(float(mixture[r.k]) for r in replies)
        w = dict(self.w)
        if total:
            w |= {
                n: torch.stack([mixture[r.k] / total * r.w[n] for r in replies]).sum(0) for n in replies[0].w
            }
        for r in replies:
            rows = self.given.rows(r.k)
            F_k = cross_entropy(self.evaluated(self.w, self.x[rows])[0], self.y[rows])
            mixture[r.k] += self.step / self.clients * F_k
        self.slice = {"mixture": nearest(mixture)}
        return w


def nearest(l_K: Tensor) -> Tensor:
    """The point of the simplex next to l, by bisecting for the number that is taken off every coordinate."""
    low, high = float(l_K.min()) - 1, float(l_K.max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (l_K - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (l_K - high).clamp(min=0)


@checked(Case("cnn", 0.9), q=2.5, L=3.0)
@checked(Case())
class QFFL(FedAvg):
    """q-FedAvg (Li et al., ICLR 2020, algorithm 2), L = 1 / (lr S) unless it is given, S the mean number of a
    client's batches, clients weighted by their share of the samples.

        Delta w_k = L (w_t - w_k);    Delta_k = F_k^q(w_t) Delta w_k;    h_k = q F_k^(q-1)(w_t) ||Delta w_k||^2 +
        L F_k^q(w_t) w_{t+1} = w_t - sum_k p_k Delta_k / sum_k p_k h_k
    Running statistics of batch normalisation take the plain mean.
    """

    part = "qffl"
    q = 0.1
    L = 0.0

    def loss_of(self, k: int) -> float:
        rows = self.given.rows(k)
        return float(cross_entropy(self.evaluated(self.w, self.x[rows])[0], self.y[rows]))

    def merge(self, replies: list[Reply]) -> Weights:
        p = self.shares_of_weight(replies)
        S = sum(p_k * self.case.epochs * math.ceil(r.n / self.case.batch) for p_k, r in zip(p, replies))
        w, L = self.weighted_mean(replies), self.L or 1 / (self.case.lr * S)
        steps, h = {n: 0 * w[n] for n in self.learned}, 0.0
        for p_k, r in zip(p, replies):
            F_k = self.loss_of(r.k)
            Dw = {n: L * (self.w[n] - r.w[n]) for n in self.learned}
            h += p_k * (
                self.q * F_k ** (self.q - 1) * sum(float((d**2).sum()) for d in Dw.values()) + L * F_k**self.q
            )
            steps = {n: step + p_k * F_k**self.q * Dw[n] for n, step in steps.items()}
        return w | {n: self.w[n] - step / h for n, step in steps.items()}


@checked(Case("cnn", 0.9))
# Some batches have losses above 1.4, others below.
@checked(Case(), baseline=1.5, eps=0.1)
class PropFair(FedAvg):
    """PropFair (Zhang et al., TMLR 2023, eq. 8 and 13): a batch's loss l becomes -log_[eps](M - l).

    log_[eps](u) = log u if u >= eps, else log eps + (u - eps) / eps
    """

    part = "propfair"
    baseline = 2.0
    eps = 0.2

    def loss(self, c: Client, seen: Pass) -> Tensor:
        u = self.baseline - super().loss(c, seen)
        return -torch.log(u) if u >= self.eps else -(math.log(self.eps) + (u - self.eps) / self.eps)


@checked(*CASES)
class Median(FedAvg):
    """Coordinate-wise median (Yin et al., ICML 2018, definition 1), of weights after local training.

        w_i <- median of w_ki over clients k; of an even number, the mean of the middle two
    Every client counts the same; running statistics of batch normalisation are treated as weights.
    """

    part = "median"

    def merge(self, replies: list[Reply]) -> Weights:
        return self.w | {n: self.middle([r.w[n] for r in replies]) for n in replies[0].w}

    def middle(self, values: list[Tensor]) -> Tensor:
        return torch.as_tensor(np.median(np.stack([v.numpy() for v in values]), axis=0))


FOURS = ((0, 1, 3, 4), (1, 2, 3, 4), (0, 1, 2, 4))
ALL = (tuple(range(len(SIZES))),) * 3


@checked(*(replace(case, attendance=FOURS) for case in CASES), share=0.25)
# It was the mean below ten answering clients.
@checked(Case("cnn"))
# Trimming two of five at each end
@checked(replace(Case("cnn"), attendance=ALL), share=0.4)
class TrimmedMean(FedAvg):
    """Trimmed mean (Yin et al., ICML 2018, definition 2), of weights after local training.

        w_i <- mean of w_ki without the ceil(beta K) largest and as many smallest (less than half), at each
        coordinate i
    Every client counts the same; running statistics of batch normalisation are treated as weights.
    """

    part = "trimmed_mean"
    share = 0.1

    def merge(self, replies: list[Reply]) -> Weights:
        return self.w | {n: self.trimmed([r.w[n] for r in replies]) for n in replies[0].w}

    def trimmed(self, values: list[Tensor]) -> Tensor:
        cut, flat = math.ceil(self.share * len(values)), [v.flatten().tolist() for v in values]
        if 2 * cut >= len(values):
            cut = (len(values) - 1) // 2
        merged = [sorted(at_i)[cut : len(values) - cut] for at_i in zip(*flat)]
        return torch.tensor([sum(rest) / len(rest) for rest in merged]).double().reshape(values[0].shape)


@checked(*CASES)
# A factor
@checked(Case("cnn"), factor=0.5)
class ClipMedian(FedAvg):
    """Clipping to the median norm (cf. Andrew et al., NeurIPS 2021).

        d_k = w_k - w;    w <- w + sum_k p_k d_k min(1, factor m / ||d_k||),    m: the median of all ||d_k||
    ||.|| is over all trained weights together, and again over all running statistics of batch normalisation
    together.
    """

    part = "clip_median"
    factor = 1.0

    def merge(self, replies: list[Reply]) -> Weights:
        w, p = dict(self.w), self.shares_of_weight(replies)
        for names in (self.learned, [n for n in replies[0].w if n not in self.learned]):
            d = [{n: r.w[n] - self.w[n] for n in names} for r in replies]
            norms = [sum(float((t**2).sum()) for t in d_k.values()) ** 0.5 for d_k in d]
            most = self.factor * statistics.median(norms)
            # statistics of one sample do not move
            keep = [min(1, most / norm) if norm else 1 for norm in norms]
            for n in names:
                w[n] = self.w[n] + sum(p_k * d_k[n] * keep_k for p_k, d_k, keep_k in zip(p, d, keep))
        return w


ATTENDANCE = ((0, 1, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4))


# With this seed, one neighbour more or fewer changes who is chosen.
@checked(*(replace(case, attendance=ATTENDANCE, seed=5) for case in CASES))
# It was the mean below five answering clients.
@checked(Case("cnn"))
# More bad clients than it can bear
@checked(replace(Case("cnn"), attendance=ATTENDANCE), share=0.4)
class MultiKrum(FedAvg):
    """Multi-Krum (Blanchard et al., NeurIPS 2017, section 4), on weights after local training.

        s(k) = sum of ||w_k - w_j||^2 over the K - f - 2 clients j nearest to k;    the K - f lowest scores are
        averaged
    f = share K, rounded up and such that 2 f + 3 <= K; 1 of three or four. Running statistics of batch
    normalisation count in
    no distance: of each coordinate's K values the f largest and the f smallest are left out, the others averaged.
    """

    part = "multi_krum"
    share = 0.2

    def merge(self, replies: list[Reply]) -> Weights:
        K = len(replies)
        f = math.ceil(self.share * K)
        while f > 1 and 2 * f + 3 > K:
            f -= 1
        scores = []
        for r in replies:
            others = sorted(self.distance(r, q) for q in replies if q is not r)
            scores.append(sum(others[: max(1, K - f - 2)]))
        best = sorted(range(K), key=lambda i: scores[i])[: K - f]
        w = self.weighted_mean([replies[i] for i in best])
        for n in set(replies[0].w) - set(self.learned):
            at_each = torch.stack([r.w[n] for r in replies]).T.tolist()
            w[n] = torch.tensor([sum(sorted(v)[f : K - f]) / (K - 2 * f) for v in at_each]).double()
        return w

    def distance(self, a: Reply, b: Reply) -> float:
        """||w_a - w_b||^2"""
        return sum(float(((a.w[n] - b.w[n]) ** 2).sum()) for n in self.learned)


test_agreement = agreement_test(globals())
