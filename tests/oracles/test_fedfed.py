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

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import unskew
from tests.fixtures import assert_close
from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import CLASSES, Case, Law, Weights
from tests.oracles.values import Client, Pass, Reply
from unskew.core import Batch
from unskew.errors import UsageError
from unskew.methods.fedfed import FedFed as Ours
from unskew.methods.fedfed import encode


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


SMALL = replace(Case("cnn", 0.9), shape=(1, 8, 8), lr=0.02)


def test_fedfed() -> None:
    agree(SMALL, FedFed, width=4)


def test_two_rounds_of_stage_one_and_other_weights() -> None:
    settings = {"rec": 2.0, "ce": 0.5, "kl": 3.0, "sigma1": 0.5, "sigma2": 1.0, "weight": 0.3}
    agree(replace(SMALL, model="mlp", momentum=0.0), FedFed, width=3, stage=0.7, **settings)


def test_stage_one_is_a_quarter_of_the_rounds_but_one_at_least_and_never_all() -> None:
    """round(0.25 * 60) = 15, the paper's; of 2 and of 1 round the first; 0.99 of 10 leaves one to train with
    the pool."""
    assert [Ours().last_of_stage(rounds) for rounds in (60, 30, 2, 1)] == [15, 8, 1, 1]
    assert Ours(stage=0.99).last_of_stage(10) == 9
    (trip,) = Ours().trips
    assert [t for t in range(61) if trip.when(t, 60)] == [15]
    assert not any(trip.when(t, 1) for t in (0, 1)), (
        "in a run of one round nobody would train on what was sent"
    )


def sender(x: Tensor, label: list[int]) -> SimpleNamespace:
    b = Batch(x, F.one_hot(torch.tensor(label), CLASSES).float(), torch.ones(len(x)))
    fed = SimpleNamespace(seed=3, shape=tuple(x.shape[1:]))
    return SimpleNamespace(id=1, n=len(x), fed=fed, sample=lambda count, purpose: b)


def still(shape: tuple[int, ...], width: int) -> Weights:
    """A generator of zeros, whose every pixel is sigmoid(0) = 1/2."""
    weights = Ours(width=width).weights(SimpleNamespace(shape=shape, seed=0))  # type: ignore[arg-type]
    return {f"fedfed.{n}": torch.zeros_like(t) for n, t in weights.items()}


def test_what_leaves_is_the_residue_twice_each_copy_with_noise_of_its_own() -> None:
    """x = 0.75 and 0.25 less 1/2: residues 1/4 and -1/4. Without noise both copies are these, in the same
    order."""
    x = torch.tensor([0.75, 0.25]).reshape(2, 1, 1, 1).expand(2, 1, 16, 16)
    c, w = sender(x, [2, 0]), still((1, 16, 16), 2)
    clear = Ours(width=2, sigma1=0, sigma2=0).send(w, c)  # type: ignore[arg-type]
    assert_close(clear["x"][:, 0, 0, 0], [0.25, -0.25, 0.25, -0.25])
    assert clear["labels"].tolist() == [2, 0, 2, 0]
    noise = Ours(width=2, sigma1=0.5, sigma2=2.0).send(w, c)["x"] - clear["x"]  # type: ignore[arg-type]
    assert noise[:2].std() == pytest.approx(0.5, rel=0.1), "512 draws: a standard error of 3 %"
    assert noise[2:].std() == pytest.approx(2.0, rel=0.1)
    assert not torch.allclose(noise[:2] * 4, noise[2:]), (
        "copies with the same noise would give the residue away"
    )


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
def test_what_cannot_work_is_refused_before_anything_trains(
    method: str, shape: tuple[int, ...], said: str
) -> None:
    x, y = torch.zeros(40, *shape), torch.arange(40) % CLASSES
    data = unskew.data.arrays(x, y, x, y)
    with pytest.raises(UsageError, match=said):
        unskew.run(method, data, model="mlp", clients=2, rounds=1)
