"""Oracles of methods that align features: penalties, contrasts, and class means that clients share."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import normalize

from tests.oracles.agreement import (
    BOTH,
    CASES,
    Divided,
    agree,
    agreement_test,
    checked,
)
from tests.oracles.plain import (
    CLASSES,
    SIZES,
    Case,
    Client,
    FedAvg,
    Law,
    Pass,
    Reply,
    Tree,
    Weights,
    cross_entropy,
    evaluating,
    model_named,
    split_forward,
)


@checked(Case("cnn"), mu=2.0, lr=0.1, epochs=2, width=6)
# With merged weights
@checked(Case(), mu=2.0, lr=0.1, epochs=2, width=6, aggregate_weights=True)
class AdCol(FedAvg):
    """AdCol (Li, He & Song, ICML 2023, algorithm 1): clients deceive a discriminator that the server trains.

        client: CE + mu mean_i sum_k 1/K (log 1/K - log D_k(h_i));    server: D descends the cross-entropy of (h,
        whose it is)
    D(h) = softmax(W2 relu(W1 relu(W0 h))). Its first weights and the order of features are given.
    """

    part = "adcol"
    mu = 0.5
    lr = 0.01
    epochs = 3
    width = 512
    aggregate_weights = False
    features = 7

    def keeps(self, name: str) -> bool:
        return not self.aggregate_weights

    def begin(self) -> None:
        generator, layers = self.given.generator("adcol", "discriminator"), {}
        shapes = [(self.width, self.features), (self.width, self.width), (len(SIZES), self.width)]
        for i, (out, inside) in enumerate(shapes):
            uniform = torch.rand(out, inside, generator=generator)
            layers[f"layer{i}"] = ((2 * uniform - 1) / math.sqrt(inside)).double()
        self.slice = {"D": layers}

    def log_D(self, h: Tensor) -> Tensor:
        W = self.slice["D"]
        return (((h @ W["layer0"].T).relu() @ W["layer1"].T).relu() @ W["layer2"].T).log_softmax(1)

    def loss(self, c: Client, seen: Pass) -> Tensor:
        K = len(SIZES)
        apart = sum((math.log(1 / K) - self.log_D(seen.h)[:, k]) / K for k in range(K))
        assert isinstance(apart, Tensor)
        return super().loss(c, seen) + self.mu * apart.mean()

    def leave(self, c: Client) -> Tree:
        return {"h": self.evaluated(c.weights, self.x[self.given.rows(c.k)])[1]}

    def server(self, replies: list[Reply], old: Weights) -> None:
        h = torch.cat([r.shared["h"] for r in replies])
        owner = torch.cat([torch.full((r.n,), r.k) for r in replies])
        generator = self.given.generator(self.t, "adcol")
        for _ in range(self.epochs):
            for rows in torch.randperm(len(h), generator=generator).split(self.case.batch):
                W = {n: t.detach().requires_grad_() for n, t in self.slice["D"].items()}
                self.slice = {"D": W}
                loss = -self.log_D(h[rows])[range(len(rows)), owner[rows]].mean()
                slopes = torch.autograd.grad(loss, list(W.values()))
                self.slice = {"D": {n: t.detach() - self.lr * g for (n, t), g in zip(W.items(), slopes)}}

    def answers(self) -> dict[int, Tensor]:
        if self.aggregate_weights:
            return super().answers()
        return {k: self.evaluated(kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@checked(*CASES, pseudo=12, widths=(6, 5), tau=3.0)
# Either loss alone
@checked(Case(), pseudo=7, widths=(6,), mu=0.0)
@checked(Case("cnn"), pseudo=7, widths=(6,), lam=0.0)
class FedBR(FedAvg):
    """FedBR (Guo, Tang & Lin, ICML 2023, eq. 3 to 6 and algorithm 2): local models agree on data that belong to
    nobody.

    Before round 1 clients share averages of B of their inputs each; a batch u is taken from them at every step.
        e1 = P(phi(u)),  e2 = P(phi_t(u)),  e3 = P(phi(x));    phi_t: the received body, constant
        L_con = -log( exp(tau cos(e1, e2)) / (exp(tau cos(e1, e2)) + exp(tau cos(e1, e3))) )
        phi and head descend CE(x, y) + mu L_con + lam CE(z(u), 1/C);    P, linear layers with ReLU between,
        ascends L_con
    Both steps are taken at once. In L_con and for u, batch normalisation is in evaluation mode. P stays with the
    client.
    """

    part = "fedbr"
    mu = 0.5
    lam = 1.0
    pseudo = 32
    tau = 2.0
    widths: tuple[int, ...] = (256, 256, 512)

    def keeps(self, name: str) -> bool:
        return name.startswith("fedbr.")

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        each, B = -(-self.pseudo // self.clients), self.case.batch
        own = {k: self.x[self.given.sample(k, each * B, "fedbr", replace=True)] for k in cohort}
        averages = [own[k][i * B : (i + 1) * B].mean(0) for i in range(each) for k in cohort]
        self.slice = {"x": torch.stack(averages[: self.pseudo])}

    def arrive(self, c: Client) -> None:
        self.row = self.noise(c, "row", Law("cycle", (len(self.slice["x"]),)))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        u = self.ready(self.slice["x"][self.row[c.step][: len(seen.x)]])
        with evaluating(c.model):
            z_u, h_u = split_forward(c.model, u)
            h_x = split_forward(c.model, seen.x)[1]
        h_t = self.evaluated(c.start, u)[1]
        fixed = {n: p.detach() for n, p in c.extra.items()}
        descended = self.contrast(fixed, h_u, h_t, h_x)
        ascended = self.contrast(dict(c.extra), h_u.detach(), h_t, h_x.detach())
        uniform = torch.full((len(u), CLASSES), 1 / CLASSES).double()
        loss = super().loss(c, seen) + self.mu * descended + self.lam * cross_entropy(z_u, uniform)
        return loss - (ascended - ascended.detach()) * (self.mu > 0)

    def ready(self, x: Tensor) -> Tensor:
        """Inputs as the model sees them."""
        return x

    def contrast(self, P: Weights, h_u: Tensor, h_t: Tensor, h_x: Tensor) -> Tensor:
        e1, e2, e3 = (normalize(self.projected(P, h)) for h in (h_u, h_t, h_x))
        near, far = torch.exp(self.tau * (e1 * e2).sum(1)), torch.exp(self.tau * (e1 * e3).sum(1))
        return -torch.log(near / (near + far)).mean()

    def projected(self, P: dict[str, Tensor] | dict[str, nn.Parameter], h: Tensor) -> Tensor:
        for i in range(len(self.widths)):
            h = h @ P[f"fedbr.weight{i}"].T + P[f"fedbr.bias{i}"]
            if i < len(self.widths) - 1:
                h = h.clamp(min=0)
        return h

    def answers(self) -> dict[int, Tensor]:
        """P stays with the clients and has no part in the logits, so the server's model is scored."""
        return {-1: self.evaluated(self.w, self.x_test)[0]}


# Averages are normalised like inputs
@checked(Case(), pseudo=12, widths=(6,))
class Normalised(FedBR):
    """Inputs are shared as they are stored, and normalised where they enter the model."""

    beside = "+norm(mean=(0.5,), std=(2.0,))"

    def ready(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 2

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.ready(x), y

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w, self.ready(self.tests_of(k)))[0] for k in range(self.clients)}


ILL = 1e-4
"""Standardising divides by deviations near zero, which makes the last bits larger; those differ by
processor."""


@checked(*CASES, atol=ILL)
# The form in the paper
@checked(*BOTH, atol=ILL, form="paper")
class FedDecorr(FedAvg):
    """FedDecorr (Shi et al., ICLR 2023, eq. 6 and 7): features of a batch should not repeat each other.

        paper:  L = ||K||_F^2 / D^2,  K: the features' correlation matrix over the batch
        code:   L = sum_{i != j} (sum_b u_bi u_bj)^2 / (D (D - 1)) / n,  u: features standardised with the
        unbiased variance
    The loss is CE + beta L. Both forms add 1e-8 to variances; a batch of one sample has no L.
    """

    part = "feddecorr"
    beta = 0.1
    form = "code"

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        return loss + self.beta * self.repeated(seen.h) if len(seen.h) > 1 else loss

    def repeated(self, h_BD: Tensor) -> Tensor:
        n, D = h_BD.shape
        centred = h_BD - h_BD.mean(0)
        if self.form == "paper":
            u = centred / (centred.pow(2).sum(0) / n + 1e-8).sqrt()
            K = u.T @ u / n
            return K.pow(2).sum() / D**2
        u = centred / (centred.pow(2).sum(0) / (n - 1) + 1e-8).sqrt()
        pairs = [(u[:, i] * u[:, j]).sum() ** 2 for i in range(D) for j in range(D) if i != j]
        return torch.stack(pairs).mean() / n


@checked(*BOTH, gamma=2.0, ema=0.7)
class FedIIR(FedAvg):
    """FedIIR (Guo et al., ICML 2023, eq. 6 to 8): the gradient of the head on each client's batch is held to its
    mean over clients.

    m <- ema m + (1 - ema) mean over samples of grad_head CE at w_t;    loss = CE + gamma ||grad_head CE(batch) -
    m||^2
    """

    part = "fediir"
    gamma = 0.001
    ema = 0.95

    def begin(self) -> None:
        self.slice = {"m": torch.zeros(CLASSES, 8).double()}

    def exchange(self, cohort: list[int]) -> None:
        if self.t == self.case.rounds:
            return
        rows = torch.cat([self.given.rows(k) for k in cohort])
        h = self.evaluated(self.w, self.x[rows])[1]
        W, b = self.w["head.weight"].clone().requires_grad_(), self.w["head.bias"].clone().requires_grad_()
        mean = torch.cat(
            [
                g.reshape(CLASSES, -1)
                for g in torch.autograd.grad(cross_entropy(h @ W.T + b, self.y[rows]), [W, b])
            ],
            1,
        )
        self.slice = {"m": self.ema * self.slice["m"] + (1 - self.ema) * mean}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = cross_entropy(seen.z, seen.y)
        head = [c.parameters["head.weight"], c.parameters["head.bias"]]
        slopes = [g.reshape(CLASSES, -1) for g in torch.autograd.grad(loss, head, create_graph=True)]
        return loss + self.gamma * ((torch.cat(slopes, 1) - self.slice["m"]) ** 2).sum()


D = 7


# Class 3 has no mean in round 2, when two who have it are new.
@checked(Case("cnn", 0.9, attendance=((0, 2), (1, 2, 3), (0, 1, 2, 4))), tau=0.5)
class FedPCL(Divided):
    """FedPCL (Tan et al., NeurIPS 2022, eq. 4 to 8): L(C) + mean_j L(C_j), L the cross-entropy of products with
    class means / tau.

    h has length 1. C_kc is client k's mean h of class c; C_c their mean over clients that have the class, which
    also stands for classes that client j lacks. A client that is new only sends its means. It predicts the class
    of its own nearest mean.
    """

    part = "fedpcl"
    tau = 0.07

    def begin(self) -> None:
        self.sent: dict[int, dict[int, Tensor]] = {}
        self.note()

    def keeps(self, name: str) -> bool:
        return True

    def freezes(self, name: str) -> bool:
        return name.startswith("head.")

    def common(self) -> dict[int, Tensor]:
        """The mean of each class over the clients that have it."""
        by_class = {j: [m[j] for m in self.sent.values() if j in m] for j in range(CLASSES)}
        return {j: sum(means) / len(means) for j, means in by_class.items() if means}  # type: ignore[misc]

    def loss(self, c: Client, seen: Pass) -> Tensor:
        if c.k not in self.sent:
            return 0 * seen.h.sum()
        common, h = self.common(), normalize(seen.h)
        sets = [common, *({**common, **means} for means in self.sent.values())]
        weights = [1.0] + [1 / len(self.sent)] * len(self.sent)
        return sum(p * self.contrast(h, seen.y, means) for p, means in zip(weights, sets))  # type: ignore[return-value]

    def contrast(self, h: Tensor, y: Tensor, means: dict[int, Tensor]) -> Tensor:
        known = sorted(means)
        return cross_entropy(h @ torch.stack([means[j] for j in known]).T / self.tau, y[:, known])

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        h, label = normalize(self.evaluated(c.weights, self.x[rows])[1]), self.y[rows].argmax(1)
        means = {j: h[label == j].mean(0) for j in sorted(set(label.tolist()))}
        self.private[c.k] = self.table(means)
        return {"means": means}

    def table(self, means: dict[int, Tensor]) -> Tree:
        rows = [means.get(j, torch.zeros(D).double()) for j in range(CLASSES)]
        return {"C": torch.stack(rows), "has": torch.tensor([float(j in means) for j in range(CLASSES)])}

    def server(self, replies: list[Reply], old: object) -> None:
        self.sent |= {r.k: r.shared["means"] for r in replies}
        self.note()

    def note(self) -> None:
        tables = [self.table(self.sent.get(k, {})) for k in range(self.clients)]
        common = self.common()
        filled = [
            self.table(common),
            *(self.table({**common, **self.sent.get(k, {})}) for k in range(self.clients)),
        ]
        there = torch.tensor(
            [1.0] + [float(k in self.sent) / max(len(self.sent), 1) for k in range(self.clients)]
        )
        self.slice = {
            "sent": torch.stack([t["C"] for t in tables]),
            "has": torch.stack([t["has"] for t in tables]),
            "C": torch.stack([t["C"] for t in filled]),
            "weight": there,
            "known": self.table(common)["has"],
        }

    def answers(self) -> dict[int, Tensor]:
        return {k: self.own(k) for k in self.kept}

    def own(self, k: int) -> Tensor:
        h, means = normalize(self.evaluated(self.w | self.kept[k], self.tests_of(k))[1]), self.sent[k]
        z = torch.full((len(h), CLASSES), -torch.inf).double()
        for j, mean in means.items():
            z[:, j] = h @ mean
        return z


@checked(*CASES, lam=2.0)
# Models of their own
@checked(*CASES, aggregate_weights=False)
class FedProto(FedAvg):
    """FedProto (Tan et al., AAAI 2022, eq. 3, 6 and 7), L2 as the mean over dimensions as in the official code.

        C_k^(j) = mean of f(x) over client k's samples of class j, by the trained model in evaluation mode
        C^(j) = sum_k n_kj / n_j C_k^(j);    loss = l_sup + lam mean_i ||f(x_i) - C^(y_i)||^2 / D
    A class without a global prototype adds nothing. As printed, no weights are sent, and the class with the
    nearest prototype is predicted; with `aggregate_weights` weights are averaged and the head predicts.
    """

    part = "fedproto"
    lam = 1.0
    aggregate_weights = True
    D = 7

    def begin(self) -> None:
        self.slice = {
            "prototypes": torch.zeros(CLASSES, self.D).double(),
            "known": torch.zeros(CLASSES).double(),
        }

    def keeps(self, name: str) -> bool:
        return not self.aggregate_weights

    def loss(self, c: Client, seen: Pass) -> Tensor:
        pull = torch.zeros(()).double()
        for h, j in zip(seen.h, seen.y.argmax(1).tolist()):
            if self.slice["known"][j]:
                pull = pull + ((h - self.slice["prototypes"][j]) ** 2).mean()
        return super().loss(c, seen) + self.lam * pull / len(seen.h)

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        h, label = self.evaluated(c.weights, self.x[rows])[1], self.y[rows].argmax(1)
        return {"means": {j: (h[label == j].mean(0), int((label == j).sum())) for j in set(label.tolist())}}

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.begin()
        for j in range(CLASSES):
            means = [r.shared["means"][j] for r in replies if j in r.shared["means"]]
            if means:
                n_j = sum(n for _, n in means)
                self.slice["prototypes"][j] = sum(n / n_j * mean for mean, n in means)
                self.slice["known"][j] = 1

    def answers(self) -> dict[int, Tensor]:
        if self.aggregate_weights:
            return super().answers()
        return {k: self.nearness(self.evaluated(kept, self.tests_of(k))[1]) for k, kept in self.kept.items()}

    def nearness(self, h_BD: Tensor) -> Tensor:
        """Minus the distance to every known prototype, as logits."""
        z_BC = torch.full((len(h_BD), CLASSES), -torch.inf).double()
        for j in range(CLASSES):
            if self.slice["known"][j]:
                z_BC[:, j] = -(h_BD - self.slice["prototypes"][j]).norm(dim=1)
        return z_BC


def test_classes_without_a_prototype() -> None:
    """Nobody who answers has class 3 in round 1, or class 0 in round 2."""
    few = replace(Case("cnn"), attendance=((2,), (0, 4), (1, 2, 4)))
    agree(few, FedProto)
    agree(few, FedProto, aggregate_weights=False)


@checked(Case("cnn", 0.9), l2r=0.2, cmi=0.1)
# Merged
@checked(Case(), cmi=0.1, merged=True)
class FedSR(FedAvg):
    """FedSR (Nguyen et al., NeurIPS 2022, as its code has it): z ~ N(h, s^2); CE(head(z)) + l2r mean |z| + cmi
    mean KL(c z || r(z|y)).

    s = softplus(A h + a); r(z|y) is normal with mean m_y and standard deviation softplus(r_y). m, r and c stay
    with their clients.
    """

    part = "fedsr"
    l2r = 0.01
    cmi = 0.001
    merged = False
    D = 7

    def keeps(self, name: str) -> bool:
        return name in ("fedsr.m", "fedsr.r", "fedsr.c") and not self.merged

    def loss(self, c: Client, seen: Pass) -> Tensor:
        p = {n.removeprefix("fedsr."): t for n, t in c.extra.items()}
        e = self.noise(c, "e", Law("normal", shape=(self.D,)))[c.step][: len(seen.h)]
        s = torch.log(1 + torch.exp(seen.h @ p["A"].T + p["a"]))
        z = seen.h + s * e
        label = seen.y.argmax(1)
        of_class = Normal(p["m"][label], torch.log(1 + torch.exp(p["r"][label])))
        kl = kl_divergence(Normal(p["c"] * seen.h, p["c"] * s), of_class).sum(1).mean()
        return cross_entropy(c.model.head(z), seen.y) + self.l2r * z.norm(dim=1).mean() + self.cmi * kl  # type: ignore[operator]


@checked(*CASES, mu=2.0, temperature=0.4, width=6)
# Without a projection
@checked(Case("cnn"), width=0)
@checked(Case())
class MOON(FedAvg):
    """MOON (Li, He & Song, CVPR 2021, eq. 3 and algorithm 1).

        l_con = -log( exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)) )
        l = l_sup + mu l_con;    z: the projection, Linear-ReLU-Linear on the features, which the head reads
    z_glob, z_prev: of the received model and of the client's own last one, in evaluation mode, without gradient.
    A client that takes part for the first time has no last model and no l_con.
    """

    part = "moon"
    mu = 1.0
    temperature = 0.5
    width = 256

    def model(self) -> nn.Sequential:
        *body, (_, head) = model_named(self.case.model).named_children()
        assert isinstance(head, nn.Linear)
        model, D = nn.Sequential(), head.in_features
        for name, block in body:
            model.add_module(name, block)
        if self.width:
            model.add_module(
                "projection", nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, self.width))
            )
        model.add_module("head", nn.Linear(self.width or D, CLASSES))
        return model

    def arrive(self, c: Client) -> None:
        self.private.setdefault(c.k, {"last": dict(c.start), "known": torch.tensor(0.0)})

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if not self.private[c.k]["known"]:
            return loss
        near = self.evaluated(c.start, seen.x)[1]
        far = self.evaluated(self.private[c.k]["last"], seen.x)[1]
        like_near = torch.exp(cosine(seen.h, near) / self.temperature)
        like_far = torch.exp(cosine(seen.h, far) / self.temperature)
        return loss + self.mu * (-torch.log(like_near / (like_near + like_far))).mean()

    def leave(self, c: Client) -> Tree:
        self.private[c.k] = {"last": c.weights, "known": torch.tensor(1.0)}
        return {}


def cosine(a_BD: Tensor, b_BD: Tensor) -> Tensor:
    return (normalize(a_BD) * normalize(b_BD)).sum(1)


test_agreement = agreement_test(globals())
