"""Oracles of methods whose clients keep a model of their own in addition to the common one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, mse_loss

from tests.oracles.agreement import Beside, agree, agreement_test, checked, logits_with
from tests.oracles.plain import Case, Client, FedAvg, Pass, Reply, Tree, Weights, cross_entropy, named_tensors


class Ditto(Beside):
    """Ditto (Li et al., ICML 2021, algorithm 1): v <- v - lr (grad f(v) + lam (v - w_t)) beside FedAvg, one step
    each a batch.

    v is a whole second model with running statistics of its own; it never leaves its client, which is scored by
    it.
    """

    part = "ditto"
    lam = 1.0

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        far = torch.stack([(v[n] - c.start[n]).pow(2).sum() for n, _ in c.model.named_parameters()]).sum()
        return cross_entropy(logits_with(c.model, v, seen.x), seen.y) + self.lam / 2 * far


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_ditto(model: str) -> None:
    agree(Case(model, 0.9), Ditto, lam=0.5)


# A share that stays
@checked(Case(), alpha=0.25, adaptive=False)
class APFL(Beside):
    """APFL (Deng, Kamani & Mahdavi 2020, algorithm 1): m = a v + (1 - a) w;  v <- v - lr a grad f(m),  a <- a -
    lr <grad f(m), v - w>.

    w is FedAvg's. a moves at the first step of a round only, or at every one, and a <- clip(a, 0, 1) after its
    step. Momentum and weight decay may carry it out of [0, 1] in later ones: m takes the nearest end then.
    """

    part = "apfl"
    alpha = 0.5
    adaptive = True
    moves = "round"

    def freezes(self, name: str) -> bool:
        return super().freezes(name) or (name == "apfl.alpha" and not self.adaptive)

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        """Its gradient is written down by hand, so it is added as a product with constants."""
        w, a = dict(c.model.named_parameters()), float(v["alpha"].detach().clamp(0, 1))
        m = {n: (a * v[n] + (1 - a) * p).detach().requires_grad_() for n, p in w.items()}
        statistics = {n: t for n, t in v.items() if "running" in n}
        loss = cross_entropy(logits_with(c.model, m | statistics, seen.x), seen.y)
        slopes = dict(zip(m, torch.autograd.grad(loss, list(m.values()))))
        gap = torch.stack([((v[n] - w[n]).detach() * g).sum() for n, g in slopes.items()]).sum()
        before = float(v["alpha"].detach())
        # the slope of the step that ends at the clipped a
        gap = (before - (before - c.lr * gap).clamp(0, 1)) / c.lr
        line = torch.stack([a * (g * v[n]).sum() for n, g in slopes.items()]).sum()
        if self.adaptive and (c.step == 0 or self.moves == "step"):
            line = line + gap * v["alpha"]
        return loss.detach() + line - line.detach()

    def own_model(self, kept: Weights) -> Weights:
        v, a = super().own_model(kept), kept["apfl.alpha"].clamp(0, 1)
        return {n: t if "running" in n else a * t + (1 - a) * self.w[n] for n, t in v.items()}


@pytest.mark.parametrize(("model", "alpha", "moves"), [("mlp", 0.999, "step"), ("cnn", 0.3, "round")])
def test_apfl(model: str, alpha: float, moves: str) -> None:
    agree(Case(model, 0.9), APFL, alpha=alpha, moves=moves)


@pytest.mark.parametrize(("alpha", "moves"), [(0.02, "round"), (0.9, "step")])
def test_a_share_that_is_clipped_and_comes_back(alpha: float, moves: str) -> None:
    """With long steps a would be far beyond 0 or 1 after one round, and come back many rounds later."""
    agree(Case(lr=1.5, epochs=1, attendance=((0, 1, 2, 3, 4),) * 4), APFL, alpha=alpha, moves=moves)


class PFedMe(FedAvg):
    """pFedMe (Dinh, Tran & Nguyen, NeurIPS 2020, algorithm 1): w <- w - lr lam (w - theta), theta after K steps
    of theta <- theta - rate (grad f(theta; batch) + lam (theta - w)) from w. Server: (1 - beta) w + beta mean by
    size, of everything but running statistics, which take the mean and follow the first of the K passes alone.

    Client k is scored by theta, found from the server's w over its shuffled batches in evaluation mode.
    """

    part = "pfedme"
    lam = 15.0
    K = 5
    rate = 0.01
    beta = 1.0

    def loss(self, c: Client, seen: Pass) -> Tensor:
        self.x_step, self.y_step = seen.x, seen.y
        return super().loss(c, seen)

    def gradient(self, c: Client) -> None:
        first = [p.grad.clone() for p in c.model.parameters() if p.grad is not None]
        theta = copy.deepcopy(c.model)
        self.descend(theta, c.model, first)
        for _ in range(self.K - 1):
            self.descend(theta, c.model, self.slopes(theta, self.x_step, self.y_step))
        for p, q in zip(c.model.parameters(), theta.parameters()):
            p.grad = self.lam * (p - q)

    def slopes(self, model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            return list(torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))

    def descend(self, theta: nn.Module, w: nn.Module, slopes: list[Tensor]) -> None:
        with torch.no_grad():
            for q, p, g in zip(theta.parameters(), w.parameters(), slopes):
                q -= self.rate * (g + self.lam * (q - p))

    def merge(self, replies: list[Reply]) -> Weights:
        mean = self.weighted_mean(replies)
        return mean | {n: (1 - self.beta) * self.w[n] + self.beta * mean[n] for n in self.learned}

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in range(self.clients)}

    def own(self, k: int) -> Tensor:
        w, theta = self.model_with(self.w).eval(), self.model_with(self.w).eval()
        for rows in self.given.sample(k, len(self.given.rows(k)), f"pfedme/{self.t}").split(self.case.batch):
            for _ in range(self.K):
                self.descend(theta, w, self.slopes(theta, self.x[rows], self.y[rows]))
        with torch.no_grad():
            return theta(self.tests_of(k))


@pytest.mark.parametrize(("model", "K", "beta"), [("cnn", 3, 0.5), ("mlp", 1, 1.0)])
def test_pfedme(model: str, K: int, beta: float) -> None:
    agree(Case(model, 0.9), PFedMe, lam=5.0, K=K, beta=beta, rate=0.05)


class PerFedAvg(FedAvg):
    """Per-FedAvg (Fallah, Mokhtari & Ozdaglar, NeurIPS 2020, algorithm 1, both practical forms), w <- w - lr G at
    every step:

        u = w - alpha grad f(w; D),  v = grad f(u; D');   FO: G = v;
        HF: G = v - alpha [grad f(w + delta v; D'') - grad f(w - delta v; D'')] / (2 delta)
    D, D', D'' are the first, second and third part of the batch, as equal as they can be. Only the pass at w
    moves statistics.
    """

    part = "per_fedavg"
    alpha = 0.01
    form = "fo"
    delta = 0.001
    steps = 1

    def loss(self, c: Client, seen: Pass) -> Tensor:
        """On D; other parts' gradients are taken in `gradient`, of a copy that keeps the statistics."""
        self.x_step, self.y_step = seen.x, seen.y
        D = self.rows_of(0, len(seen.x))
        return cross_entropy(seen.z[D], seen.y[D])

    def rows_of(self, part: int, n: int) -> Tensor:
        parts = 2 if self.form == "fo" else 3
        rows = [j for j in range(n) if j * parts // n == part]
        return torch.tensor(rows or list(range(n)))

    def slope(self, c: Client, moved: dict[str, Tensor], part: int) -> dict[str, Tensor]:
        """grad f at these weights on this part of the batch."""
        model = copy.deepcopy(c.model)
        with torch.enable_grad():
            named = {n: t.detach().requires_grad_() for n, t in moved.items()}
            z = torch.func.functional_call(model, named, (self.x_step,))
            rows = self.rows_of(part, len(self.x_step))
            grads = torch.autograd.grad(cross_entropy(z[rows], self.y_step[rows]), list(named.values()))
        return dict(zip(named, grads))

    def gradient(self, c: Client) -> None:
        w = {n: p.detach().clone() for n, p in c.parameters.items()}
        first = {n: p.grad.clone() for n, p in c.parameters.items() if p.grad is not None}
        v = self.slope(c, {n: w[n] - self.alpha * first[n] for n in w}, 1)
        for n, p in c.parameters.items():
            p.grad = v[n]
        if self.form == "hf":
            ahead = self.slope(c, {n: w[n] + self.delta * v[n] for n in w}, 2)
            behind = self.slope(c, {n: w[n] - self.delta * v[n] for n in w}, 2)
            for n, p in c.parameters.items():
                p.grad = v[n] - self.alpha * (ahead[n] - behind[n]) / (2 * self.delta)

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.adapted(k) for k in range(self.clients)}

    def adapted(self, k: int) -> Tensor:
        model = self.model_with(self.w).eval()
        optimiser = torch.optim.SGD(model.parameters(), self.alpha)
        for step in range(self.steps):
            rows = self.given.sample(k, self.case.batch, f"per_fedavg/{self.t}/{step}")
            optimiser.zero_grad()
            cross_entropy(model(self.x[rows]), self.y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            return model(self.tests_of(k))


@pytest.mark.parametrize(("model", "form", "alpha"), [("cnn", "fo", 0.5), ("mlp", "hf", 0.1)])
def test_per_fedavg(model: str, form: str, alpha: float) -> None:
    agree(Case(model, 0.9), PerFedAvg, form=form, alpha=alpha, delta=0.5, steps=2)


@checked(Case("cnn", 0.9), kappa=5.0)
class FedDBE(FedAvg):
    """FedDBE (Zhang et al., NeurIPS 2023, eq. 3 to 6): CE(head(h + m_k)) + kappa / 2 |mean h - g|^2 / D, from
    round 2 on.

    g is the mean feature of all clients' samples by the model after round 1. m_k begins at 0, is trained and
    stays.
    """

    part = "feddbe"
    kappa = 1.0

    def begin(self) -> None:
        D = self.evaluated(self.w, self.x_test)[1].shape[1]
        self.slice = {"g": torch.zeros(D), "on": torch.zeros(())}

    def keeps(self, name: str) -> bool:
        return name == "feddbe.m"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        if not self.slice["on"]:
            return super().loss(c, seen) + 0 * c.extra["feddbe.m"].sum()
        z = c.model.head(seen.h + c.extra["feddbe.m"])  # type: ignore[operator]
        return cross_entropy(z, seen.y) + self.kappa / 2 * (seen.h.mean(0) - self.slice["g"]).pow(2).mean()

    def exchange(self, cohort: list[int]) -> None:
        if self.t == 1:
            rows = torch.cat([self.given.rows(k) for k in range(self.clients)])
            self.slice = {"g": self.evaluated(self.w, self.x[rows])[1].mean(0), "on": torch.ones(())}

    def answers(self) -> dict[int, Tensor]:
        return super().answers() | {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        h = self.evaluated(self.w, self.tests_of(k))[1] + self.kept[k]["feddbe.m"]
        return h @ self.w["head.weight"].T + self.w["head.bias"]


# Two models
@checked(Case(), models=2)
class FedEM(FedAvg):
    """FedEM (Marfoq et al., NeurIPS 2021, algorithm 1 with local SGD).

    q_ij ~ pi_j exp(-l(th_j; i)) at the round's beginning;    pi_j <- mean_i q_ij;    th_j descends mean_i q_ij
    l(th_j; i) p = sum_j pi_j softmax(z_j): with a client's own pi for the client, with 1/M for everybody else
    """

    part = "fedem"
    models = 3

    def begin(self) -> None:
        self.names = [n for n, _ in named_tensors(self.module)]
        others = {}
        for j in range(1, self.models):
            for n in self.names:
                order = torch.randperm(self.w[n].numel(), generator=self.given.generator("fedem", n, j))
                others[f"fedem.{j}.{n}"] = self.w[n].flatten()[order].reshape(self.w[n].shape)
        self.w = self.w | others | {"fedem.pi": torch.full((self.models,), 1 / self.models).double()}

    def keeps(self, name: str) -> bool:
        return name == "fedem.pi"

    def model_of(self, w: Weights, j: int) -> Weights:
        return {n: w[f"fedem.{j}.{n}" if j else n] for n in self.names}

    def q(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        likelihoods = []
        for j in range(self.models):
            p = self.evaluated(self.model_of(w, j), x)[0].softmax(1)
            likelihoods.append(w["fedem.pi"][j] * (p**y).prod(1))
        return torch.stack(likelihoods, 1) / torch.stack(likelihoods).sum(0)[:, None]

    def arrive(self, c: Client) -> None:
        rows = self.given.rows(c.k)
        c.extra["fedem.pi"].requires_grad_(False)
        c.extra["fedem.pi"].copy_(self.q(c.start, self.x[rows], self.y[rows]).mean(0))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        q = self.q(c.start, seen.x, seen.y)
        total = torch.zeros((), dtype=torch.float64)
        for j in range(self.models):
            th = {n: c.extra[f"fedem.{j}.{n}"] for n in self.names} if j else None
            z = logits_with(c.model, th, seen.x) if th else seen.z
            total = total - (q[:, j] * (seen.y * z.log_softmax(1)).sum(1)).mean()
        return total

    def mixture(self, w: Weights, x: Tensor) -> Tensor:
        p = [
            self.evaluated(self.model_of(w, j), x)[0].softmax(1) * w["fedem.pi"][j]
            for j in range(self.models)
        ]
        return torch.stack(p).sum(0).log()

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.mixture(self.w | kept, self.tests_of(k)) for k, kept in self.kept.items()}
        return own | {-1: self.mixture(self.w, self.x_test)}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedem(momentum: float) -> None:
    agree(Case(momentum=momentum), FedEM)


class FedKD(Beside):
    """FedKD (Wu et al. 2022, eq. 1 to 6): a mentor stays, a mentee is sent; both learn from both, less where both
    are wrong.

        L = CE_w + CE_v + (KL(p_v || p_w) + KL(p_w || p_v)) / (CE_w + CE_v) + 2 MSE(h_v, W h_w) / (CE_w + CE_v)
    Everything descends L at once. Clients answer with their mentor.
    """

    part = "fedkd"

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        v = dict(v)
        W = v.pop("hidden")
        features: list[Tensor] = []
        watch = c.model.head.register_forward_pre_hook(lambda _, h: features.append(h[0]))  # type: ignore[operator, union-attr]
        z = torch.func.functional_call(c.model, v, (seen.x,))
        watch.remove()
        log_v, log_w = z.log_softmax(1), seen.z.log_softmax(1)
        known = cross_entropy(z, seen.y) + cross_entropy(seen.z, seen.y)
        both = kl_div(log_w, log_v.exp(), reduction="batchmean") + kl_div(
            log_v, log_w.exp(), reduction="batchmean"
        )
        return cross_entropy(z, seen.y) + (both + 2 * mse_loss(features[0], seen.h @ W.T)) / known


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fedkd(model: str) -> None:
    agree(Case(model, 0.9), FedKD)


class FML(Beside):
    """FML (Shen et al. 2020, eq. 6 and 7), both models of one architecture.

        L_own = alpha CE(z_own, y) + (1 - alpha) KL(p || p_own);    L = beta CE(z, y) + (1 - beta) KL(p_own || p)
    Each descends its own loss with the other as a constant, at the same time. Clients answer with their own
    model.
    """

    part = "fml"
    alpha = 0.5
    beta = 0.5

    def loss(self, c: Client, seen: Pass) -> Tensor:
        z_own = logits_with(c.model, self.named(c), seen.x)
        p, p_own = seen.z.softmax(1), z_own.softmax(1)
        common = self.beta * cross_entropy(seen.z, seen.y) + (1 - self.beta) * divergence(p_own.detach(), p)
        return (
            common
            + self.alpha * cross_entropy(z_own, seen.y)
            + (1 - self.alpha) * divergence(p.detach(), p_own)
        )


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """mean_i KL(p_i || q_i)."""
    return (p * (p / q).log()).sum(1).mean()


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fml(model: str) -> None:
    agree(Case(model, 0.9), FML, alpha=0.3, beta=0.6)


@checked(Case("cnn", 0.9), lam=0.4, takes=0.6)
# Taught by logits
@checked(Case(), lam=0.4, teach="logits")
class FedPHP(FedAvg):
    """FedPHP (Li et al., ECML PKDD 2021): (1 - lam) CE + lam MMD(h, h_p), and p <- m p + (1 - m) w with m = 0.9 z
    / (takes T).

    MMD: mean_ij k(h_i, h_j) + k(p_i, p_j) - k(h_i, p_j) - k(p_i, h_j), five Gaussian kernels of 1/4 to 4 times
    the mean squared distance of two of the 2 B features. With teach=logits  -sum_c softmax(z_p / 4)_c log
    softmax(z)_c.
    """

    part = "fedphp"
    lam = 0.1
    teach = "features"
    most = 0.9
    takes = 1.0

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"w": dict(self.w), "z": torch.tensor(0.0)})

    def loss(self, c: Client, seen: Pass) -> Tensor:
        z, h = self.evaluated(self.private[c.k]["w"], seen.x)
        taught = mmd(seen.h, h) if self.teach == "features" else cross_entropy(seen.z, (z / 4).softmax(1))
        return (1 - self.lam) * cross_entropy(seen.z, seen.y) + self.lam * taught

    def leave(self, c: Client) -> Tree:
        p, z = self.private[c.k]["w"], self.private[c.k]["z"]
        m = min(self.most * float(z) / (self.takes * self.case.rounds), self.most)
        self.private[c.k] = {"w": {n: m * p[n] + (1 - m) * t for n, t in c.weights.items()}, "z": z + 1}
        return {}

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.evaluated(mine["w"], self.tests_of(k))[0] for k, mine in self.private.items()}
        return super().answers() | own


def mmd(h_BD: Tensor, p_BD: Tensor) -> Tensor:
    if len(h_BD) == 1:
        return h_BD.sum() * 0
    both = [*h_BD, *p_BD]
    apart = torch.stack([torch.stack([(a - b).pow(2).sum() for b in both]) for a in both])
    N, B = len(both), len(h_BD)
    s = apart.detach().sum() / (N * N - N) + 1e-8
    k = sum(torch.exp(-apart / (s * 2.0**i)) for i in (-2, -1, 0, 1, 2))
    assert isinstance(k, Tensor)
    return (k[:B, :B] + k[B:, B:] - k[:B, B:] - k[B:, :B]).mean()


test_agreement = agreement_test(globals())
