"""FedGen as FLea compares it (our reconstruction after Liu et al., PAKDD 2022): a generator of images at the
server.

    h = relu(W [e; y] + b) as 256 maps of 4x4; three transposed convolutions of kernel 4, stride 2, to 128,
    64, 32 maps, each followed by relu; one of kernel 3 to the image's channels; G(y, e) = scale tanh(.),
    resized to the input's size
After the first `stage` of the rounds, after every merge, with the new global model f in evaluation mode and
constant:
    steps of Adam on  CE(f(G(y, e)), y) + exp(-mean_ij |G_i - G_j| |e_i - e_j|^2),   e normal, y uniform
The optimiser is made afresh each round. The server then sends images of G with their labels; a client adds
weight CE(f(x~), y~) of as many of them as the batch has samples, in evaluation mode.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy, evaluating
from tests.oracles.tiny import CLASSES, Case, Law, Weights
from tests.oracles.values import Client, Pass, Reply

LATENT = 100
MAPS = (256, 128, 64, 32)


class FedGenImages(FedAvg):
    part = "fedgen_images"
    stage = 0.3
    steps = 50
    batch_size = 64
    lr = 0.001
    samples = 256
    scale = 2.5
    weight = 1.0

    def begin(self) -> None:
        random = self.given.generator("fedgen_images", "generator")

        def normal(*shape: int, fan: int) -> Tensor:
            return (torch.randn(shape, generator=random) * (2 / fan) ** 0.5).double()

        G = {"w": normal(256 * 16, LATENT + CLASSES, fan=LATENT), "b": torch.zeros(256 * 16).double()}
        for i, (a, b) in enumerate(pairwise(MAPS)):
            G[f"w{i}"], G[f"b{i}"] = normal(a, b, 4, 4, fan=a * 4), torch.zeros(b).double()
        channels = self.case.shape[0]
        G["w_out"], G["b_out"] = normal(32, channels, 3, 3, fan=32 * 9), torch.zeros(channels).double()
        none = torch.zeros(0, *self.case.shape).double()
        self.slice = {"G": G, "x": none, "labels": torch.zeros(0, dtype=torch.int64)}

    def arrive(self, c: Client) -> None:
        if len(self.slice["labels"]):
            self.row = self.noise(c, "row", Law("cycle", (len(self.slice["labels"]),)))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if not len(self.slice["labels"]):
            return loss
        rows = self.row[c.step][: len(seen.x)]
        with evaluating(c.model):
            z = c.model(self.slice["x"][rows])
        return loss + self.weight * cross_entropy(z, one_hot(self.slice["labels"][rows]))

    def server(self, replies: list[Reply], old: Weights) -> None:
        if self.t < round(self.stage * self.case.rounds):
            return
        random = self.given.generator(self.t, "fedgen_images")
        G = {n: t.detach().clone().requires_grad_() for n, t in self.slice["G"].items()}
        adam, f = torch.optim.Adam(list(G.values()), self.lr), self.model_with(self.w).eval()

        def draw(count: int) -> tuple[Tensor, Tensor]:
            e = torch.randn(count, LATENT, generator=random).double()
            return e, torch.randint(CLASSES, (count,), generator=random)

        for _ in range(self.steps):
            e, label = draw(self.batch_size)
            x = self.images(G, label, e)
            pairs = [(a - b).abs().mean() * ((d - g) ** 2).mean() for a, d in zip(x, e) for b, g in zip(x, e)]
            adam.zero_grad()
            (cross_entropy(f(x), one_hot(label)) + torch.exp(-torch.stack(pairs).mean())).backward()
            adam.step()
        e, label = draw(self.samples)
        G = {n: t.detach() for n, t in G.items()}
        self.slice = {"G": G, "x": self.images(G, label, e), "labels": label}

    def images(self, G: Weights, label: Tensor, e: Tensor) -> Tensor:
        h = (torch.cat([e, one_hot(label)], 1) @ G["w"].T + G["b"]).clamp(min=0).reshape(-1, 256, 4, 4)
        for i in range(3):
            h = F.conv_transpose2d(h, G[f"w{i}"], G[f"b{i}"], stride=2, padding=1).clamp(min=0)
        x = self.scale * torch.tanh(F.conv_transpose2d(h, G["w_out"], G["b_out"], padding=1))
        return F.interpolate(x, self.case.shape[1:], mode="bilinear", align_corners=False)


def one_hot(label: Tensor) -> Tensor:
    return F.one_hot(label, CLASSES).double()


RATE, SIGNS = 1e-5, 5e-4
"""Adam's first steps are nearly the rate times the sign of a gradient, which float32 need not know near 0: a
weight of G may be off by twice the rate a step. An image sums up thousands of them, so it shows how G was
trained all the same."""


def test_fedgen_images() -> None:
    agree(Case("cnn", 0.9), FedGenImages, atol=SIGNS, steps=2, batch_size=4, samples=9, weight=0.7, lr=RATE)


def test_the_rounds_before_the_generator() -> None:
    agree(Case(), FedGenImages, atol=SIGNS, stage=0.67, steps=1, batch_size=4, samples=9, lr=RATE)
