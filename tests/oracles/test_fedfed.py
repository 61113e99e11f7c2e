"""FedFed (Yang et al., NeurIPS 2023, algorithms 1 and 2): what a common generator leaves over of images, with noise, for all.

    (mu, log s^2) = encoder(x), log s^2 within [-10, 10];   x^ = decoder(mu + s e);   r = x - x^
    stage I, t <= T_p:  CE(x) + mean_i [ rec mean_pixels (x^_i - x_i)^2 + ce/2 sum_j CE(r_i + sigma_j e_ij)
                                         + kl KL(N(mu_i, s_i^2) || N(0, I)) / (3 l) ]
After round T_p all clients send x - decoder(mu) + sigma_j e for j = 1 and then 2, by the merged generator, with labels.
    stage II:  CE(x) + weight CE(rows of what all sent)
Every pass is one in training mode, in this order: x, r + sigma_1 e_1, r + sigma_2 e_2.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import CLASSES, Case, Law, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.methods.fedfed import FedFed as Ours


class FedFed(FedAvg):
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
            loss = loss + self.ce / 2 * cross_entropy(self.forward(c, r + sigma * e[c.step][:many])[0], seen.y)
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
            h = F.conv_transpose2d(h, P[f"{name}_w"], P[f"{name}_b"], stride, padding=1, output_padding=stride - 1)
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


SMALL = replace(Case("cnn", 0.9), shape=(1, 8, 8), lr=0.02)


def test_fedfed() -> None:
    agree(SMALL, FedFed, width=4)


def test_two_rounds_of_stage_one_and_other_weights() -> None:
    settings = {"rec": 2.0, "ce": 0.5, "kl": 3.0, "sigma1": 0.5, "sigma2": 1.0, "weight": 0.3}
    agree(replace(SMALL, model="mlp", momentum=0.0), FedFed, width=3, stage=0.7, **settings)


def test_stage_one_is_a_quarter_of_the_rounds_but_one_at_least_and_never_all() -> None:
    """round(0.25 * 60) = 15, the paper's; of 2 and of 1 round the first; 0.99 of 10 leaves one to train with the pool."""
    assert [Ours().last_of_stage(rounds) for rounds in (60, 30, 2, 1)] == [15, 8, 1, 1]
    assert Ours(stage=0.99).last_of_stage(10) == 9
    (trip,) = Ours().trips
    assert [t for t in range(61) if trip.when(t, 60)] == [15]
    assert not any(trip.when(t, 1) for t in (0, 1)), "in a run of one round nobody would train on what was sent"
