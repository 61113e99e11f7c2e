"""Oracles of methods whose clients share samples, averages, activations or noisy latents."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unskew
from tests.oracles.agreement import BOTH, CASES, agree, agreement_test, checked
from tests.oracles.plain import (
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
    model_named,
    split_forward,
)
from unskew.errors import UsageError
from unskew.methods.fedfed import FedFed as Ours
from unskew.methods.fedfed import encode


@checked(*CASES, share=0.4)
@checked(Case())
class FedData(FedAvg):
    """FedData (Zhao et al., arXiv 1806.00582, section 4.2): raw samples of every client are shared with all
    clients.

    Before round 1 every client sends max(1, floor(share n_k)) samples with their labels; P is the union of them
    all. Each sample of a local step is one of P with probability |P| / (|P| + n_k), else the client's own: as
    many steps as without P.
    """

    part = "feddata"
    share = 0.1

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0 or not self.share:
            return
        rows = torch.cat(
            [
                self.given.sample(k, max(1, int(self.share * len(self.given.rows(k)))), "feddata")
                for k in cohort
            ]
        )
        self.slice = {"x": self.x[rows], "labels": self.y[rows].argmax(1)}

    def arrive(self, c: Client) -> None:
        if self.slice:
            self.row = self.noise(c, "row", Law("cycle", (len(self.slice["labels"]),)))
            self.turn = self.noise(c, "turn", Law("uniform"))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y, P = x.clone(), y.clone(), len(self.slice["labels"])
        for i in range(len(x)):
            if self.turn[c.step, i] < P / (P + c.n):
                j = self.row[c.step, i]
                x[i] = self.slice["x"][j]
                y[i] = 0
                y[i, self.slice["labels"][j]] = 1
        return x, y


@checked(*CASES, lam=0.3, group=4)
@checked(Case())
class FedMix(FedAvg):
    """FedMix (Yoon et al., ICLR 2021, eq. 4 and algorithm 2): the loss of a mixture with others' averages, to
    first order.

    Before round 1 every client shuffles its samples and sends the mean inputs and mean labels (x-, y-) of groups
    of M. Every step takes one such pair for its whole batch; with u_i = (1 - lam) x_i
        L = mean_i [ (1 - lam) CE(f(u_i), y_i) + lam CE(f(u_i), y-) + lam <d/du_i (1 - lam) CE(f(u_i), y_i), x-> ]
    Batch normalisation makes the loss of a sample depend on other inputs; the derivative is of the batch's mean
    loss.
    """

    part = "fedmix"
    lam = 0.1
    group = 5

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        groups = []
        for k in cohort:
            rows = self.given.sample(k, len(self.given.rows(k)), "fedmix")
            groups += [rows[first : first + self.group] for first in range(0, len(rows), self.group)]
        self.slice: Tree = {
            "x": torch.stack([self.x[rows].mean(0) for rows in groups]),
            "y": torch.stack([self.y[rows].mean(0) for rows in groups]),
        }

    def arrive(self, c: Client) -> None:
        self.pairs = self.noise(c, "row", Law("integers", (len(self.slice["y"]),), per_sample=False))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ((1 - self.lam) * x).requires_grad_(), y

    def loss(self, c: Client, seen: Pass) -> Tensor:
        lam, pair = self.lam, self.pairs[c.step]
        x_mean, y_mean = self.slice["x"][pair], self.slice["y"][pair].expand_as(seen.y)
        own = (1 - lam) * cross_entropy(seen.z, seen.y)
        (slope,) = torch.autograd.grad(own, seen.x, create_graph=True)
        return own + lam * cross_entropy(seen.z, y_mean) + lam * (slope * x_mean).sum()


@checked(*CASES, lam=0.3, group=4)
@checked(Case())
# What FLea's comparison calls FedMix mixed one average into a whole batch.
@checked(*BOTH, per_batch=True, group=4)
class NaiveMix(FedAvg):
    """NaiveMix (Yoon et al., ICLR 2021, section 3.2): mixes a client's inputs with averages of other clients'
    inputs.

    Before round 1 every client shuffles its samples and sends the mean inputs and mean labels (x-, y-) of groups
    of M. Every step takes one such pair for its whole batch:    x~ = (1 - lam) x + lam x-,    y~ = (1 - lam) y +
    lam y- As in FLea's comparison (`per_batch`): lam ~ Beta(a, a) for each step, and a pair for each sample.
    """

    part = "naivemix"
    lam = 0.1
    group = 5
    per_batch = False
    a = 2.0

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        x, y = [], []
        for k in cohort:
            rows = self.given.sample(k, len(self.given.rows(k)), "naivemix")
            for first in range(0, len(rows), self.group):
                together = rows[first : first + self.group]
                x.append(self.x[together].mean(0))
                y.append(self.y[together].mean(0))
        self.slice = {"x": torch.stack(x), "y": torch.stack(y)}

    def arrive(self, c: Client) -> None:
        pairs = len(self.slice["y"])
        if self.per_batch:
            self.pairs = self.noise(c, "row", Law("cycle", (pairs,)))
            self.strength = self.noise(c, "lam", Law("beta", (self.a, self.a), per_sample=False))
        else:
            self.pairs = self.noise(c, "row", Law("integers", (pairs,), per_sample=False))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        lam = self.strength[c.step] if self.per_batch else self.lam
        pair = self.pairs[c.step][: len(x)] if self.per_batch else [int(self.pairs[c.step])] * len(x)
        mixed = [
            ((1 - lam) * x_i + lam * self.slice["x"][j], (1 - lam) * y_i + lam * self.slice["y"][j])
            for x_i, y_i, j in zip(x, y, pair)
        ]
        return torch.stack([x_i for x_i, _ in mixed]), torch.stack([y_i for _, y_i in mixed])


CANCELLED = 1e-4
"""The engine takes distances from |a|^2 + |b|^2 - 2 ab, whose float32 digits cancel where activations are
close."""


# As its page says, only the teacher is in evaluation mode, and running statistics see the mixture.
@checked(*CASES, atol=CANCELLED, alpha=0.4)
# Without the last term
@checked(*BOTH, lambda2=0.0, a=0.5)
# Mixtures alone
@checked(Case(), lambda1=0.0, lambda2=0.0)
# Activations that travel with the update
@checked(*BOTH, atol=CANCELLED, fused=True)
# Every term of it in training mode, and running statistics that see the passes in the code's order.
@checked(*CASES, atol=CANCELLED, variant="official", alpha=0.4)
# The public codes schedule ends at one
@checked(Case(), atol=CANCELLED, variant="official", lambda2=1.05)
class FLea(FedAvg):
    """FLea (Xia et al., KDD 2024, eq. 3 to 5 and 8): training on mixtures of activations with those of other
    clients.

        f: the activation after the first block;   f~ = beta f + (1 - beta) fF,   y~ = beta y + (1 - beta) yF
        L = CE(f~, y~) + lambda1 mean_i KL(p(f~_i) || p_t(f~_i)) + lambda2 nu(x, f) / sqrt(nu(x, x) nu(f, f))
        nu(a, b) = 1/n^2 sum_ij A_ij B_ij;   A, B: the double-centred matrices of Euclidean distances
    p_t: the received model, in evaluation mode and constant. beta ~ Beta(a, a) for each sample. After the merge
    those who answered send activations, by the merged model (`fused`: by the received one), of a fixed share of
    their samples; they are the next round's (fF, yF). Without any, f~ = f and y~ = y. A batch of one or two
    samples has no last term. As in the public code (`variant=official`), in its order of passes, all in training
    mode but p_t's:
        f = body(x);  z = model(x);  z~ = above(f~);  zF = above(fF)
        L = CE(z, y) + CE(z~, y~) + lambda1 KL(p_t(fF) || p(fF)) + lambda2 sqrt(last term);    lambda2 falls by
        0.1 a round to 1
    and where there is no fF, L = CE(z, y) + lambda1 / 2 KL(p_t(x) || p(x)) + lambda2 sqrt(last term).
    """

    part = "flea"
    alpha = 0.1
    lambda1 = 1.0
    lambda2 = 3.0
    a = 2.0
    variant = "paper"
    fused = False

    def begin(self) -> None:
        none = self.module[0](torch.zeros(0, *self.case.shape).double()).detach()
        self.slice = {"features": none, "labels": torch.zeros(0, dtype=torch.int64)}

    def arrive(self, c: Client) -> None:
        self.buffered = len(self.slice["labels"])
        if self.buffered:
            self.row = self.noise(c, "row", Law("cycle", (self.buffered,)))
            self.beta = self.noise(c, "beta", Law("beta", (self.a, self.a)))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not self.buffered:
            return x, y
        row, self.beta_B = self.row[c.step][: len(x)], self.beta[c.step][: len(x)]
        self.fF = self.slice["features"][row]
        yF = torch.nn.functional.one_hot(self.slice["labels"][row], CLASSES).double()
        self.y_mixed = torch.stack([b * y_i + (1 - b) * yF_i for b, y_i, yF_i in zip(self.beta_B, y, yF)])
        return x, y if self.variant == "official" else self.y_mixed

    def forward(self, c: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        first, *rest, head = c.model
        self.f = h = first(x)
        if self.buffered:
            h = torch.stack([beta * f + (1 - beta) * fF for beta, f, fF in zip(self.beta_B, self.f, self.fF)])
        self.mixed = h
        if self.variant == "official":
            return split_forward(c.model, x)
        for block in rest:
            h = block(h)
        return head(h), h

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        close = correlation(seen.x, self.f) if len(seen.x) > 2 else torch.zeros(()).double()
        if self.variant == "paper":
            return loss + self.lambda1 * kl(seen.z, self.received(c, self.mixed)) + self.lambda2 * close
        lambda2 = max(1.0, self.lambda2 - 0.1 * (self.t - 1))
        loss = loss + lambda2 * (close.sqrt() if close > 0 else close)
        if not self.buffered:
            with torch.no_grad():
                teacher = self.model_with(c.start).eval()(seen.x)
            return loss + self.lambda1 / 2 * kl(teacher, seen.z)
        loss = loss + cross_entropy(c.model[1:](self.mixed), self.y_mixed)
        return loss + self.lambda1 * kl(self.received(c, self.fF), c.model[1:](self.fF))

    def received(self, c: Client, f: Tensor) -> Tensor:
        """Logits of the model that was received, from activations at the cut."""
        with torch.no_grad():
            return self.model_with(c.start).eval()[1:](f)

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.old = old

    def exchange(self, cohort: list[int]) -> None:
        if not 0 < self.t < self.case.rounds or not self.alpha:
            return
        body = self.model_with(self.old if self.fused else self.w).eval()[0]
        rows = torch.cat([self.shared_rows(k) for k in cohort])
        self.slice = {"features": body(self.x[rows]).detach(), "labels": self.y[rows].argmax(1)}

    def shared_rows(self, k: int) -> Tensor:
        count = int(self.alpha * len(self.given.rows(k)))
        if self.variant == "official":
            return self.given.sample(k, count, "flea", replace=True)
        return self.given.sample(k, max(1, count), "flea")


def kl(z_BC: Tensor, u_BC: Tensor) -> Tensor:
    """KL(softmax(z) || softmax(u)), the mean over the batch."""
    p, q = z_BC.softmax(1), u_BC.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def correlation(x: Tensor, f: Tensor) -> Tensor:
    """The squared distance correlation of the batch's inputs and activations."""
    A, B = centred_distances(x.flatten(1)), centred_distances(f.flatten(1))
    return (A * B).mean() / ((A * A).mean() * (B * B).mean()).sqrt()


def centred_distances(x_BD: Tensor) -> Tensor:
    n = len(x_BD)
    zero = torch.zeros(()).double()
    E = torch.stack(
        [
            torch.stack([(a - b).norm() if i != j else zero for j, b in enumerate(x_BD)])
            for i, a in enumerate(x_BD)
        ]
    )
    J = torch.eye(n).double() - 1 / n
    return J @ E @ J


SMALL = replace(Case("cnn", 0.9), shape=(1, 8, 8), lr=0.02)


@checked(SMALL, width=4)
class FedFed(FedAvg):
    """FedFed (Yang et al., NeurIPS 2023, algorithms 1 and 2): what a common generator leaves over of images, with
    noise, for all.

        (mu, log s^2) = encoder(x), log s^2 within [-10, 10];   x^ = decoder(mu + s e);   r = x - x^
        stage I, t <= T_p:  CE(x) + mean_i [ rec mean_pixels (x^_i - x_i)^2 + ce/2 sum_j CE(r_i + sigma_j e_ij)
                                             + kl KL(N(mu_i, s_i^2) || N(0, I)) / (3 l) ]
    After round T_p all clients send x - decoder(mu) + sigma_j e for j = 1 and then 2, by the merged generator,
    with labels.
        stage II:  CE(x) + weight CE(rows of what all sent)
    Every pass is one in training mode, in this order: x, r + sigma_1 e_1, r + sigma_2 e_2.
    """

    part = "fedfed"
    stage = 0.25
    rec = 5.0
    ce = 2.0
    kl = 0.005
    width = 64
    sigma1 = 0.15
    sigma2 = 0.25
    weight = 1.0

    @property
    def last(self) -> int:
        return max(1, round(self.stage * self.case.rounds))

    def begin(self) -> None:
        self.slice = {"x": torch.zeros(0, *self.case.shape), "labels": torch.zeros(0, dtype=torch.int64)}

    def arrive(self, c: Client) -> None:
        if self.t > self.last:
            self.row = self.noise(c, "row", Law("cycle", (len(self.slice["labels"]),)))
        else:
            self.e = self.noise(c, "e", Law("normal", (), (self.width,)))
            self.e1, self.e2 = (self.noise(c, n, Law("normal", (), self.case.shape)) for n in ("e1", "e2"))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss, many = super().loss(c, seen), len(seen.x)
        if self.t > self.last:  # what is no longer used has a gradient of 0, and still decays
            row = self.row[c.step][:many]
            y = F.one_hot(self.slice["labels"][row], CLASSES).double()
            idle = 0 * sum(p.sum() for p in c.extra.values())
            return loss + self.weight * cross_entropy(self.forward(c, self.slice["x"][row])[0], y) + idle
        mu, log_var = self.encoded(dict(c.extra), seen.x)
        x_hat = self.decoded(dict(c.extra), mu + (log_var / 2).exp() * self.e[c.step][:many])
        r = seen.x - x_hat
        for e, sigma in ((self.e1, self.sigma1), (self.e2, self.sigma2)):
            loss = loss + self.ce / 2 * cross_entropy(
                self.forward(c, r + sigma * e[c.step][:many])[0], seen.y
            )
        kl = 0.5 * (log_var.exp() + mu**2 - 1 - log_var).sum(1)
        return loss + self.rec * F.mse_loss(x_hat, seen.x) + self.kl * kl.mean() / (3 * self.width)

    def encoded(self, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        P = {n.removeprefix("fedfed.enc_"): t for n, t in w.items()}
        h = F.conv2d(F.pad(x, (1, 1, 1, 1)), P["a_w"], P["a_b"], stride=2).clamp(min=0)
        h = F.conv2d(F.pad(h, (1, 1, 1, 1)), P["b_w"], P["b_b"], stride=2).clamp(min=0)
        both = h.reshape(len(x), -1) @ P["w"].T + P["b"]
        return both[:, : self.width], both[:, self.width :].clamp(-10, 10)

    def decoded(self, w: Weights, z: Tensor) -> Tensor:
        P, (_, height, width) = {n.removeprefix("fedfed.dec_"): t for n, t in w.items()}, self.case.shape
        h = (z @ P["w"].T + P["b"]).clamp(min=0).reshape(-1, 64, height // 4, width // 4)
        for name, stride in (("a", 1), ("b", 2), ("c", 1), ("d", 2)):
            h = F.conv_transpose2d(
                h, P[f"{name}_w"], P[f"{name}_b"], stride, padding=1, output_padding=stride - 1
            )
            h = torch.sigmoid(h) if name == "d" else h.clamp(min=0)
        return h

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.slice = dict(self.slice)

    def exchange(self, cohort: list[int]) -> None:
        if self.t != self.last:
            return
        x, labels = [], []
        for k in range(self.clients):
            rows = self.given.sample(k, len(self.given.rows(k)), "fedfed")
            r = self.x[rows] - self.decoded(self.w, self.encoded(self.w, self.x[rows])[0])
            draw = self.given.generator("fedfed", "release", k)
            for sigma in (self.sigma1, self.sigma2):
                x.append(r + sigma * torch.randn(r.shape, generator=draw).double())
                labels.append(self.y[rows].argmax(1))
        self.slice = {"x": torch.cat(x), "labels": torch.cat(labels)}


def test_two_rounds_of_stage_one_and_other_weights() -> None:
    settings = {"rec": 2.0, "ce": 0.5, "kl": 3.0, "sigma1": 0.5, "sigma2": 1.0, "weight": 0.3}
    agree(replace(SMALL, model="mlp", momentum=0.0), FedFed, width=3, stage=0.7, **settings)


def still(shape: tuple[int, ...], width: int) -> Weights:
    """A generator of zeros, whose every pixel is sigmoid(0) = 1/2."""
    weights = Ours(width=width).weights(SimpleNamespace(shape=shape, seed=0))  # type: ignore[arg-type]
    return {f"fedfed.{n}": torch.zeros_like(t) for n, t in weights.items()}


def test_log_variances_stay_where_their_exponential_is_finite() -> None:
    P = {n.removeprefix("fedfed."): t for n, t in still((1, 4, 4), 1).items()}
    mu, log_var = encode(P | {"enc_b": torch.tensor([50.0, 50.0])}, torch.zeros(1, 1, 4, 4))
    assert (float(mu), float(log_var)) == (50, 10)


@pytest.mark.parametrize(
    ("method", "shape", "said"),
    [
        ("fedfed", (1, 6, 6), "sides are multiples of 4 and a sample here is \\[1, 6, 6\\]"),
        ("fedfed", (9,), "a sample here is \\[9\\]"),
        ("fedfed(stage=1)", (1, 8, 8), "stage"),
        ("fedfed+local", (1, 8, 8), "common generator"),
    ],
)
def test_what_cannot_work_is_refused_before_training(method: str, shape: tuple[int, ...], said: str) -> None:
    x, y = torch.zeros(40, *shape), torch.arange(40) % CLASSES
    data = unskew.data.arrays(x, y, x, y)
    with pytest.raises(UsageError, match=said):
        unskew.run(method, data, model="mlp", clients=2, rounds=1)


STRIDES = {"a": 1, "b": 2, "c": 1, "d": 2}


RETURNING = replace(
    Case("cnn", 0.9), shape=(1, 8, 8), lr=0.02, attendance=((0, 1, 3, 4), (1, 2, 3), (0, 1, 2, 4))
)


@checked(RETURNING, width=4, alpha=5, sigma=0.5, top=2)
@checked(RETURNING, width=4, alpha=5, sigma=0.5, top=2, encoder="own")
class FedDPMS(FedAvg):
    """FedDPMS (Chen & Vikalo, CVPRW 2023, sections 3.1 to 3.3): clients draw images of classes they lack from
    noisy means.
        latent mu = sigmoid(W h + b);  log s^2 = V h + v, within [-10, 10];  the head reads mu
        stage I, t <= T_p:  CE + lam mean_i [ KL(N(mu_i, s_i^2) || N(0, I)) / l + |decode(mu_i + s_i e) - x_i|^2 ]
    Decoders stay with the clients and are averaged once, after round T_p. Then, and after every later round but
    the last, those who answered and have not shared yet send, for each of their `top` largest classes with
    `least` samples or more, with m_c the mean of mu over the samples of class c by the merged model, or by the
    client's own after its training (encoder="own"), which then also decides what a decoded image is,
        paper:   the first alpha vectors m_c + sigma e whose decoded image the model takes for c
        single:  m_c + sigma / sqrt(alpha) e, from which the server makes 4 alpha vectors m + spread e and keeps
        the first alpha
                 that it takes for c, or m itself
    All clients say after round T_p which `top` classes they have least of. Each is matched with the client whose
    shared classes meet most of these, among all that have shared before its first round of stage II with a match.
        stage II:  CE; each sample is one of the n~ decoded vectors of the match with probability n~ / (n + n~),
        else its own
    """

    part = "feddpms"
    lam = 0.05
    stage = 0.4
    width = 32
    top = 3
    alpha = 200
    sigma = 4.0
    least = 2
    mechanism = "paper"
    spread = 0.25
    encoder = "merged"

    def model(self) -> nn.Sequential:
        *body, (_, head) = model_named(self.case.model, self.case.shape).named_children()
        assert isinstance(head, nn.Linear)
        model = nn.Sequential()
        for name, block in body:
            model.add_module(name, block)
        model.add_module("base", nn.Flatten())
        model.add_module("latent", nn.Sequential(nn.Linear(head.in_features, self.width), nn.Sigmoid()))
        model.add_module("head", nn.Linear(self.width, CLASSES))
        return model

    @property
    def last_of_stage(self) -> int:
        return round(self.stage * self.case.rounds)

    def keeps(self, name: str) -> bool:
        return name.startswith("feddpms.dec_")

    def begin(self) -> None:
        K, rows = self.clients, self.top * self.alpha
        self.slice = {
            "decoder": {n: torch.zeros_like(t) for n, t in decoder_of(self.w).items()},
            "z": torch.zeros(K, rows, self.width).double(),
            "label": torch.zeros(K, rows, dtype=torch.int64),
            "count": torch.zeros(K),
            "asked": torch.zeros(K),
            "match": torch.full((K,), -1),
            "classes": torch.zeros(K, CLASSES),
            "lacks": torch.zeros(K, CLASSES),
            "begun": torch.zeros(K),
        }

    def arrive(self, c: Client) -> None:
        self.e = self.noise(c, "e", Law("normal", (), (self.width,)))
        match = int(self.slice["match"][c.k])
        self.many = int(self.slice["count"][match]) if match >= 0 else 0
        if self.t > self.last_of_stage and self.many:
            self.turn, self.row = (self.noise(c, name, Law("uniform")) for name in ("turn", "row"))
            self.drawn = self.decoded(self.slice["decoder"], self.slice["z"][match])
            self.drawn_label = self.slice["label"][match]

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.t <= self.last_of_stage or not self.many:
            return x, y
        x, y = x.clone(), y.clone()
        for i in range(len(x)):
            if self.turn[c.step, i] < self.many / (c.n + self.many):
                row = int(self.row[c.step, i].float() * self.many)
                x[i], y[i] = self.drawn[row], F.one_hot(self.drawn_label[row], CLASSES)
        return x, y

    def forward(self, c: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        *body, latent, head = c.model
        self.h = x
        for block in body:
            self.h = block(self.h)
        mu = latent(self.h)
        return head(mu), mu

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if self.t > self.last_of_stage:  # what is no longer used has a gradient of 0, and still decays
            return loss + 0 * sum(p.sum() for p in c.extra.values())
        log_var = (self.h @ c.extra["feddpms.var_w"].T + c.extra["feddpms.var_b"]).clamp(-10, 10)
        kl = 0.5 * (log_var.exp() + seen.h**2 - 1 - log_var).sum(1) / self.width
        z = seen.h + (log_var / 2).exp() * self.e[c.step][: len(seen.x)]
        far = ((self.decoded(decoder_of(dict(c.extra)), z) - seen.x) ** 2).sum((1, 2, 3))
        return loss + self.lam * (kl + far).mean()

    def decoded(self, P: Weights, z: Tensor) -> Tensor:
        _, height, width = self.case.shape
        h = (z @ P["dec_w"].T + P["dec_b"]).clamp(min=0).reshape(-1, 64, height // 4, width // 4)
        for name, stride in STRIDES.items():
            h = F.conv_transpose2d(
                h, P[f"dec_{name}_w"], P[f"dec_{name}_b"], stride=stride, padding=1, output_padding=stride - 1
            )
            h = torch.sigmoid(h) if name == "d" else h.clamp(min=0)
        return h

    def leave(self, c: Client) -> Tree:
        if self.encoder == "own":
            self.private[c.k] = {"w": {n: t.clone() for n, t in c.weights.items() if "feddpms." not in n}}
        return {}

    def exchange(self, cohort: list[int]) -> None:
        if self.t == self.last_of_stage:
            n = {k: len(self.given.rows(k)) for k in cohort}
            own = {k: decoder_of(self.kept[k]) for k in cohort}
            self.slice["decoder"] = {
                name: sum(n[k] * own[k][name] for k in cohort) / sum(n.values())
                for name in self.slice["decoder"]
            }
        if not self.last_of_stage <= self.t < self.case.rounds:
            return
        if self.t == self.last_of_stage:
            for k in range(self.clients):
                counts = self.y[self.given.rows(k)].sum(0)
                fewest = sorted(range(CLASSES), key=lambda j: (counts[j], j))[: self.top]
                self.slice["lacks"][k, fewest] = 1
        for k in cohort:
            counts = self.y[self.given.rows(k)].sum(0)
            largest = sorted(range(CLASSES), key=lambda j: (-counts[j], j))[: self.top]
            if not self.slice["asked"][k]:
                self.share(k, [j for j in largest if counts[j] >= self.least])
            self.slice["asked"][k] = 1
            if self.slice["match"][k] >= 0:
                self.slice["begun"][k] = 1
        for i in range(self.clients):
            meets = [
                int((self.slice["classes"][j] * self.slice["lacks"][i]).sum()) if j != i else 0
                for j in range(self.clients)
            ]
            if not self.slice["begun"][i]:
                self.slice["match"][i] = meets.index(max(meets)) if max(meets) > 0 else -1

    def share(self, k: int, classes: list[int]) -> None:
        rows = self.given.rows(k)
        w = self.private[k]["w"] if self.encoder == "own" else self.w
        mu, label = self.evaluated(w, self.x[rows])[1], self.y[rows].argmax(1)
        noise = self.given.generator("feddpms", "release", k)
        more = self.given.generator("feddpms", "spread", k)
        z, labels = [], []
        for j in classes:
            mean = mu[label == j].mean(0)
            if self.mechanism == "single":
                once = (
                    mean
                    + self.sigma / self.alpha**0.5 * torch.randn(1, self.width, generator=noise)[0].double()
                )
                near = once + self.spread * torch.randn(4 * self.alpha, self.width, generator=more).double()
                right = near[self.taken_for(self.w, near) == j][: self.alpha]
                kept = right if len(right) else once[None]
            else:
                kept = torch.zeros(0, self.width).double()
                for _ in range(200):
                    near = mean + self.sigma * torch.randn(self.alpha, self.width, generator=noise).double()
                    kept = torch.cat([kept, near[self.taken_for(w, near) == j]])
                    if len(kept) >= self.alpha:
                        break
            z.append(kept[: self.alpha])
            labels += [j] * len(z[-1])
        if labels:
            self.slice["z"][k, : len(labels)] = torch.cat(z)
            self.slice["label"][k, : len(labels)] = torch.tensor(labels)
            self.slice["count"][k] = len(labels)
            self.slice["classes"][k, labels] = 1

    def taken_for(self, w: Weights, z: Tensor) -> Tensor:
        """The classes that a model takes decoded vectors for."""
        return self.evaluated(w, self.decoded(self.slice["decoder"], z))[0].argmax(1)

    def server(self, replies: list[Reply], old: Weights) -> None:
        for name in ("asked", "match", "classes", "lacks", "begun", "count", "z", "label"):
            self.slice[name] = self.slice[name].clone()

    def answers(self) -> dict[int, Tensor]:
        """Decoders stay with the clients and have no part in the logits, so the server's model is scored."""
        return {-1: self.evaluated(self.w, self.x_test)[0]}


def decoder_of(w: Weights) -> Weights:
    prefix = "feddpms."
    return {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(f"{prefix}dec_")}


test_agreement = agreement_test(globals())
