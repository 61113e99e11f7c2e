"""Oracles of methods that distil outputs of other models, or train a generator at the server."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

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
    evaluating,
)


@checked(*BOTH, lam=2.0)
# With merged weights
@checked(Case(), aggregate_weights=True)
class FD(FedAvg):
    """FD (Jeong et al. 2018, algorithm 1): per class, the mean output of the other clients is the teacher.

    p_k^(c) = mean softmax output over client k's samples of class c, by its trained model
    q_k^(c) = mean of p_j^(c) over the other clients that answered the last round and have class c
    loss = CE(z, y) + lam mean_i CE(z_i, q_k^(y_i));    nothing is added where nobody else has the class
    """

    part = "fd"
    lam = 1.0
    aggregate_weights = False

    def begin(self) -> None:
        self.last: dict[int, dict[int, Tensor]] = {}
        self.slice = self.packed({}, 0)

    def packed(self, outputs: dict[int, dict[int, Tensor]], t: int) -> dict[str, Any]:
        p, has = torch.zeros(CLASSES, CLASSES).double(), torch.zeros(CLASSES).double()
        for by_class in outputs.values():
            for j, mean in by_class.items():
                p[j], has[j] = p[j] + mean, has[j] + 1
        return {"p": p, "has": has, "t": torch.tensor(float(t))}

    def keeps(self, name: str) -> bool:
        return not self.aggregate_weights

    def loss(self, c: Client, seen: Pass) -> Tensor:
        taught = torch.zeros(()).double()
        for z, j in zip(seen.z, seen.y.argmax(1).tolist()):
            others = [by_class[j] for k, by_class in self.last.items() if k != c.k and j in by_class]
            if others:
                taught = taught - (sum(others) / len(others) * z.log_softmax(0)).sum()
        return super().loss(c, seen) + self.lam * taught / len(seen.z)

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        p, label = self.evaluated(c.weights, self.x[rows])[0].softmax(1), self.y[rows].argmax(1)
        means = {j: p[label == j].mean(0) for j in set(label.tolist())}
        self.private[c.k] = self.packed({c.k: means}, self.t)
        return {"means": means}

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.last = {r.k: r.shared["means"] for r in replies}
        self.slice = self.packed(self.last, self.t)

    def answers(self) -> dict[int, Tensor]:
        if self.aggregate_weights:
            return super().answers()
        return {k: self.evaluated(kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


NOISE, HIDDEN = 64, 512


@checked(*BOTH, steps=2, batch_size=8, lr=0.001)
class FedGen(FedAvg):
    """FedGen (Zhu, Hong & Zhou, ICML 2021, eq. 4 and 5, algorithm 1): a generator of features, trained at the
    server.

        G(y, e) = W2 relu(W1 [y, e] + b1) + b2,   e uniform on [0, 1)
        server:  sum_k w_ky CE(head_k(G(y, e)), y) + exp(-mean_ij |G_i - G_j| |e_i - e_j|^2),   w_ky = n_ky /
        sum_j n_jy
                 Adam, |.| and |.|^2 averaged over coordinates; y uniform over the classes with more than one
                 sample
        client, from round 2:  CE(z, y) + a_t CE(head(G(y', e)), y') + b_t KL(head(G(y, e')) || z)
                 a_t = max(a decay^t, 1e-4), b_t likewise; the generated side of KL is constant
    A class that G has not learnt adds nothing to the last two terms, whose sums are divided by the whole batch.
    """

    part = "fedgen"
    a = 10.0
    b = 10.0
    decay = 0.98
    steps = 50
    batch_size = 128
    lr = 0.0003
    weight_decay = 0.01
    D = 7

    def begin(self) -> None:
        random, G = self.given.generator("fedgen", "generator"), {}
        for i, (out, inside) in (("1", (HIDDEN, NOISE + CLASSES)), ("2", (self.D, HIDDEN))):
            G[f"w{i}"] = ((2 * torch.rand(out, inside, generator=random) - 1) / inside**0.5).double()
            G[f"b{i}"] = ((2 * torch.rand(out, generator=random) - 1) / inside**0.5).double()
        self.G = {n: t.requires_grad_() for n, t in G.items()}
        self.adam = torch.optim.Adam(list(self.G.values()), self.lr, weight_decay=self.weight_decay)
        self.known: list[int] = []
        self.describe()

    def describe(self) -> None:
        """Put the generator and its optimiser's state into the slice."""
        state = {n: self.adam.state.get(t, {}) for n, t in self.G.items()}
        zeros = {n: torch.zeros_like(t) for n, t in self.G.items()}
        self.slice = {
            "G": {n: t.detach().clone() for n, t in self.G.items()},
            "first": {n: s.get("exp_avg", zeros[n]).clone() for n, s in state.items()},
            "second": {n: s.get("exp_avg_sq", zeros[n]).clone() for n, s in state.items()},
            "done": torch.as_tensor(state["w1"].get("step", 0.0)).clone(),
            "known": torch.tensor([float(j in self.known) for j in range(CLASSES)]),
        }

    def arrive(self, c: Client) -> None:
        self.e, self.e_own = (self.noise(c, name, Law("uniform", (), (NOISE,))) for name in ("e", "e_own"))
        self.label = self.noise(c, "label", Law("integers", (CLASSES,)))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss, head = super().loss(c, seen), c.model.head
        if self.t == 1:
            return loss
        a, b = (max(v * self.decay**self.t, 1e-4) if v else 0.0 for v in (self.a, self.b))
        for i, y in enumerate(seen.y.argmax(1).tolist()):
            drawn = int(self.label[c.step, i])
            if drawn in self.known:
                z = head(self.features(drawn, self.e[c.step, i]).detach())  # type: ignore[operator]
                loss = loss - a * z.log_softmax(0)[drawn] / len(seen.y)
            if y in self.known:
                p = head(self.features(y, self.e_own[c.step, i])).detach().softmax(0)  # type: ignore[operator]
                loss = loss + b * (p * (p.log() - seen.z[i].log_softmax(0))).sum() / len(seen.y)
        return loss

    def features(self, y: int, e: Tensor) -> Tensor:
        """G(y, e) of one class and one noise vector."""
        one_hot = torch.zeros(CLASSES).double()
        one_hot[y] = 1
        hidden = (self.G["w1"] @ torch.cat([one_hot, e]) + self.G["b1"]).clamp(min=0)
        return self.G["w2"] @ hidden + self.G["b2"]

    def leave(self, c: Client) -> Tree:
        return {"counts": c.counts}

    def server(self, replies: list[Reply], old: Weights) -> None:
        n_C = sum(r.shared["counts"] for r in replies)
        self.known = [j for j in range(CLASSES) if n_C[j] > 1]  # type: ignore[index]
        random = self.given.generator(self.t, "fedgen")
        for _ in range(self.steps if self.known else 0):
            e = torch.rand(self.batch_size, NOISE, generator=random).double()
            labels = [
                self.known[i] for i in torch.randint(len(self.known), (self.batch_size,), generator=random)
            ]
            h = torch.stack([self.features(y, e_i) for y, e_i in zip(labels, e)])
            loss = self.diversity(h, e)
            for r in replies:
                log_p = (h @ r.w["head.weight"].T + r.w["head.bias"]).log_softmax(1)
                for i, y in enumerate(labels):
                    loss = loss - r.shared["counts"][y] / n_C[y] * log_p[i, y] / self.batch_size  # type: ignore[index]
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        self.describe()

    def diversity(self, h: Tensor, e: Tensor) -> Tensor:
        pairs = [(a - b).abs().mean() * ((d - f) ** 2).mean() for a, d in zip(h, e) for b, f in zip(h, e)]
        return torch.exp(-torch.stack(pairs).mean())


def test_its_decay_and_classes_with_a_single_sample() -> None:
    """Round 1 has one sample of one class, which the generator does not learn."""
    few = replace(Case(seed=3), attendance=((0, 4), (1, 2), (3,)))
    agree(few, FedGen, steps=2, batch_size=8, decay=0.5)


LATENT = 100
MAPS = (256, 128, 64, 32)


RATE, SIGNS = 1e-5, 5e-4
"""Adam's first steps are nearly the rate times the sign of a gradient, which float32 need not know near 0: a
weight of G may be off by twice the rate a step. An image sums up thousands of them, so it shows how G was
trained all the same."""


@checked(Case("cnn", 0.9), atol=SIGNS, steps=2, batch_size=4, samples=9, weight=0.7, lr=RATE)
# The rounds before the generator
@checked(Case(), atol=SIGNS, stage=0.67, steps=1, batch_size=4, samples=9, lr=RATE)
class FedGenImages(FedAvg):
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


@checked(Case("cnn", 0.9), lam=0.7, gamma=0.3)
class FedHKD(FedAvg):
    """FedHKD (Chen et al., ICLR 2023, eq. 4 to 9, without noise): CE + lam mean_j |q(H^j) - Q^j| + gamma mean_i
    |h_i - H^{y_i}|.

    h_k^j, q_k^j: means of features and of softmax(z / T) over client k's samples of class j, sent where N_k^j /
    N_k >= threshold; H^j = sum_k N_k^j / N^j h_k^j, and Q^j likewise. A class that nobody sends keeps what it
    had.
    """

    part = "fedhkd"
    lam = 0.05
    gamma = 0.05
    T = 0.5
    threshold = 0.25
    D = 7

    def begin(self) -> None:
        sizes = {"H": (CLASSES, self.D), "Q": (CLASSES, CLASSES), "known": (CLASSES,)}
        self.slice = {name: torch.zeros(size).double() for name, size in sizes.items()}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss, known = super().loss(c, seen), [j for j in range(CLASSES) if self.slice["known"][j]]
        for j in known:
            answer = (c.model.head(self.slice["H"][j]) / self.T).softmax(0)  # type: ignore[operator]
            loss = loss + self.lam * (answer - self.slice["Q"][j]).norm() / len(known)
        for h, j in zip(seen.h, seen.y.argmax(1).tolist()):
            if j in known:
                loss = loss + self.gamma * (h - self.slice["H"][j]).norm() / len(seen.h)
        return loss

    def leave(self, c: Client) -> Tree:
        rows = self.given.rows(c.k)
        z, h = self.evaluated(c.weights, self.x[rows])
        q, label = (z / self.T).softmax(1), self.y[rows].argmax(1)
        enough = [j for j in range(CLASSES) if (n := int((label == j).sum())) and n / c.n >= self.threshold]
        return {
            "means": {
                j: (int((label == j).sum()), h[label == j].mean(0), q[label == j].mean(0)) for j in enough
            }
        }

    def server(self, replies: list[Reply], old: Weights) -> None:
        for j in range(CLASSES):
            if sent := [r.shared["means"][j] for r in replies if j in r.shared["means"]]:
                n_j = sum(n for n, _, _ in sent)
                self.slice["H"][j] = sum(n / n_j * h for n, h, _ in sent)
                self.slice["Q"][j] = sum(n / n_j * q for n, _, q in sent)
                self.slice["known"][j] = 1


@checked(*CASES)
# Another weight and temperature
@checked(*BOTH, beta=2.0, tau=3.0)
class FedNTD(FedAvg):
    """FedNTD (Lee et al., NeurIPS 2022, eq. 5 and 6): distillation from the received model of what is not true.

        l = CE(z, y) + beta tau^2 mean_i KL(q_g,i || q_l,i)
    q_g, q_l: softmaxes at temperature tau of the received and of the local model's logits without the true class;
    the received model is in evaluation mode and constant.
    """

    part = "fedntd"
    beta = 1.0
    tau = 1.0

    def loss(self, c: Client, seen: Pass) -> Tensor:
        received = self.evaluated(c.start, seen.x)[0]
        far = torch.zeros(()).double()
        for z, g, y in zip(seen.z, received, seen.y.argmax(1).tolist()):
            others = [j for j in range(len(z)) if j != y]
            q_l, q_g = (z[others] / self.tau).softmax(0), (g[others] / self.tau).softmax(0)
            far = far + (q_g * (q_g / q_l).log()).sum()
        return super().loss(c, seen) + self.beta * self.tau**2 * far / len(seen.z)


test_agreement = agreement_test(globals())
