"""Oracles of methods that change inputs or the statistics of features, and of the default method."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import BOTH, CASES, agree, agreement_test, checked
from tests.oracles.plain import CLASSES, Case, Client, FedAvg, Law, Pass, Reply, Tree, Weights
from tests.oracles.test_steps import FedDyn


@checked(*(replace(case, shape=(2, 6, 6)) for case in BOTH), flip=0.4, shift=2, blank=3)
@checked(Case())
class Augment(FedAvg):
    """Augmentation: each time a sample is drawn it is mirrored, moved and partly blanked, one sample after the
    other.

    Mirrored with probability `flip`; moved by dy rows and dx columns, each uniform in -shift .. shift, what
    leaves the image is lost and zeros come in; then, along each axis, `width` neighbouring rows or columns,
    uniform in 0 .. blank, become zero.
    """

    part = "augment"
    flip = 0.5
    shift = 4
    blank = 0

    def arrive(self, c: Client) -> None:
        axes = (2,)
        self.mirror = self.noise(c, "mirror", Law("uniform")) if self.flip else None
        self.moves = (
            self.noise(c, "shift", Law("integers", (2 * self.shift + 1,), axes)) if self.shift else None
        )
        if self.blank:
            self.widths = self.noise(c, "width", Law("integers", (self.blank + 1,), axes))
            self.starts = self.noise(c, "start", Law("uniform", (), axes))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([self.changed(x_i, c.step, i) for i, x_i in enumerate(x)]), y

    def changed(self, x: Tensor, step: int, i: int) -> Tensor:
        _, height, width = x.shape
        if self.mirror is not None and self.mirror[step][i] < self.flip:
            x = torch.stack([x[:, :, width - 1 - j] for j in range(width)], -1)
        if self.moves is not None:
            dy, dx = (int(m) - self.shift for m in self.moves[step][i])
            moved = torch.zeros_like(x)
            for row in range(height):
                for column in range(width):
                    if 0 <= row + dy < height and 0 <= column + dx < width:
                        moved[:, row, column] = x[:, row + dy, column + dx]
            x = moved
        if self.blank:
            x = x.clone()
            for axis, length in enumerate((height, width)):
                wide = int(self.widths[step][i][axis])
                first = math.floor(float(self.starts[step][i][axis]) * (length - wide + 1))
                x.narrow(1 + axis, first, wide).zero_()
        return x


@checked(*(replace(case, shape=(2, 6, 6)) for case in CASES), mean=(0.3, -0.2), std=(1.5, 0.8))
@checked(replace(Case("cnn"), shape=(3, 6, 6), lr=0.01))
class Norm(FedAvg):
    """Conventional normalisation (the baseline "norm" of Yan et al., CVPR 2025): x <- (x - mean) / std per
    channel.

    The same constants for everybody, in training and at test time.
    """

    part = "norm"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def normalised(self, x: Tensor) -> Tensor:
        return torch.stack([(x[:, i] - m) / s for i, (m, s) in enumerate(zip(self.mean, self.std))], 1)

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.normalised(x), y

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w, self.normalised(self.tests_of(k)))[0] for k in range(self.clients)}


@checked(*(replace(case, shape=(2, 6, 6)) for case in CASES))
# A client that did not report does not count
@checked(replace(Case(), overflowing=(0,), attendance=((1, 3, 4), (1, 2), (2, 4))))
class Standardise(FedAvg):
    """Standardise: x <- (x - mu) / sigma per channel, with the mean and the deviation over all clients' samples.

    The constants are those of the samples of all that reported, put together; a client sends its own two numbers
    a channel.
    """

    part = "standardise"

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        x = torch.cat([self.x[self.given.rows(k)] for k in cohort if k not in self.case.overflowing])
        channels = [x[:, i].reshape(-1) for i in range(x.shape[1])]
        self.slice = {
            "mu": torch.stack([c.mean() for c in channels]),
            "sigma": torch.stack([c.std(correction=0) for c in channels]),
        }

    def scaled(self, x: Tensor) -> Tensor:
        pairs = zip(self.slice["mu"], self.slice["sigma"])
        return torch.stack([(x[:, i] - mu) / sigma for i, (mu, sigma) in enumerate(pairs)], 1)

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.scaled(x), y

    def answers(self) -> dict[int, Tensor]:
        if not self.case.sites:
            return {-1: self.evaluated(self.w, self.scaled(self.x_test))[0]}
        return {k: self.evaluated(self.w, self.scaled(self.tests_of(k)))[0] for k in range(self.clients)}


@checked(*(replace(case, shape=(2, 6, 6)) for case in CASES))
# The mean pair for everybody
@checked(*(replace(case, shape=(2, 6, 6)) for case in BOTH), mean=True)
# Two clients a batch as in the public code
@checked(*(replace(case, shape=(2, 6, 6)) for case in BOTH), variant="official")
# Images of no client take the mean pair
@checked(replace(Case("cnn"), sites=False))
# Client 0's pixels are finite, their sum is not: the server refuses its statistics.
@checked(replace(Case(), overflowing=(0,), attendance=((1, 3, 4), (1, 2), (2, 4))))
class FedRDN(FedAvg):
    """FedRDN (Yan et al., CVPR 2025, eq. 5 to 9): images are normalised with the statistics of a client drawn at
    random.

        mu_k = 1/n_k sum_i mean_hw x_i,    sigma_k = 1/n_k sum_i std_hw x_i                per channel, once,
        before round 1
        training: x_i <- (x_i - mu_j) / sigma_j, j uniform over clients, anew for every image;    test: j = k
    FedRDN-V: the mean of all mu_k and of all sigma_k, always. Images of no client, and of a client that did not
    report, take
    this pair too. As in the public code: the unbiased std, one draw a batch, mean and std of two independent
    clients.
    """

    part = "fedrdn"
    mean = False
    variant = "paper"

    def exchange(self, cohort: list[int]) -> None:
        if self.t > 0:
            return
        pairs = {k: self.pair(k) for k in cohort if k not in self.case.overflowing}
        mu, sigma = (torch.stack(list(v)) for v in zip(*pairs.values()))
        row = torch.tensor([list(pairs).index(k) if k in pairs else -1 for k in cohort])
        self.slice = {"mu": mu, "sigma": sigma, "row": row}

    def pair(self, k: int) -> tuple[Tensor, Tensor]:
        """Each channel's mean, and mean standard deviation, over client k's images."""
        images = self.x[self.given.rows(k)]
        means, stds = [], []
        for image in images:
            for channel in image:
                m, pixels = channel.mean(), channel.numel()
                means.append(m)
                squares = ((channel - m) ** 2).sum()
                stds.append((squares / (pixels - 1 if self.variant == "official" else pixels)).sqrt())
        shape = images.shape[:2]
        return torch.stack(means).reshape(shape).mean(0), torch.stack(stds).reshape(shape).mean(0)

    def arrive(self, c: Client) -> None:
        rows = (len(self.slice["mu"]),)
        if self.mean:
            return
        if self.variant == "official":
            self.of_mean = self.noise(c, "of_mean", Law("integers", rows, (1,), per_sample=False))
            self.of_std = self.noise(c, "of_std", Law("integers", rows, (1,), per_sample=False))
        else:
            self.of_mean = self.of_std = self.noise(c, "of_pair", Law("integers", rows))

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.mean:
            return normalised(x, *self.mean_pair()), y
        many = len(x)
        of_mean, of_std = (
            v[c.step].expand(many) if len(v[c.step]) == 1 else v[c.step] for v in (self.of_mean, self.of_std)
        )
        images = [
            normalised(x[i : i + 1], self.slice["mu"][of_mean[i]], self.slice["sigma"][of_std[i]])
            for i in range(many)
        ]
        return torch.cat(images), y

    def mean_pair(self) -> tuple[Tensor, Tensor]:
        return self.slice["mu"].mean(0), self.slice["sigma"].mean(0)

    def answers(self) -> dict[int, Tensor]:
        if not self.case.sites:
            return {-1: self.evaluated(self.w, normalised(self.x_test, *self.mean_pair()))[0]}
        z = {}
        for k in range(self.clients):
            row = int(self.slice["row"][k])
            own = (
                self.mean_pair()
                if self.mean or row < 0
                else (self.slice["mu"][row], self.slice["sigma"][row])
            )
            z[k] = self.evaluated(self.w, normalised(self.tests_of(k), *own))[0]
        return z


def normalised(x: Tensor, mu_C: Tensor, sigma_C: Tensor) -> Tensor:
    return torch.stack([(x[:, i] - mu) / sigma for i, (mu, sigma) in enumerate(zip(mu_C, sigma_C))], 1)


CHANNELS = 3
NUDGE = 1e-6


# Perturbed at every step
@checked(Case("cnn", 0.9), p=1.0)
# One variance as in the public code
@checked(replace(Case("cnn"), attendance=((1, 2), (2, 4), (0, 3))), variant="official")
class FedFA(FedAvg):
    """FedFA (Zhou & Konukoglu, ICLR 2023, eq. 4 to 10): channel statistics of activations are perturbed in
    training.

    At the block whose output has pixels, with probability p a step, each sample's channel mean m and deviation s:
        V_m, V_s: unbiased variances over the batch;    S_m, S_s: population variances over clients of their mean
        m and s gamma = C r / sum_c r_c,  r_c = 1 / (1 + 1 / S_c);    m' = m + N(0, 1) sqrt((gamma + 1) V_m),  s'
        likewise h <- (h - m) / s s' + m'
    Before round 1 S = 1. A batch of one sample has no variances and stays. 1e-6 is added to the variances of
    pixels, to S and to (gamma + 1) V. As in the public code: one variance of all channels' means together, so
    that gamma = 1.
    """

    part = "fedfa"
    p = 0.5
    variant = "paper"

    def begin(self) -> None:
        self.slice = {what: {"conv": torch.ones(CHANNELS).double()} for what in ("m", "s")}

    def arrive(self, c: Client) -> None:
        self.normal = {
            what: self.noise(c, f"{what}/conv", Law("normal", (), (CHANNELS,))) for what in ("m", "s")
        }
        self.turn = self.noise(c, "p/conv", Law("uniform", (), (), per_sample=False))

    def forward(self, c: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        first, *rest, head = c.model
        h = first(x)
        if self.turn[c.step] < self.p and len(x) > 1:
            h = self.perturbed(c, h)
        for block in rest:
            h = block(h)
        return head(h), h

    def perturbed(self, c: Client, h: Tensor) -> Tensor:
        m, s = statistics(h)
        new = {}
        for what, v in (("m", m), ("s", s)):
            S = self.slice[what]["conv"] + NUDGE
            r = 1 / (1 + 1 / S)
            gamma = CHANNELS * r / r.sum()
            V = ((v - v.mean(0)) ** 2).sum(0) / (len(v) - 1)
            new[what] = v + self.normal[what][c.step][: len(v)] * ((gamma + 1) * V + NUDGE).sqrt()
        wide = (len(h), CHANNELS, 1, 1)
        unit = (h - m.reshape(wide)) / s.reshape(wide)
        return unit * new["s"].reshape(wide) + new["m"].reshape(wide)

    def leave(self, c: Client) -> Tree:
        with torch.no_grad():
            m, s = statistics(self.model_with(c.weights).eval()[0](self.x[self.given.rows(c.k)]))
        return {"m": m.mean(0), "s": s.mean(0)}

    def server(self, replies: list[Reply], old: Weights) -> None:
        for what in ("m", "s"):
            means = torch.stack([r.shared[what] for r in replies])
            if self.variant == "official":
                S = ((means - means.mean()) ** 2).mean().repeat(CHANNELS)
            else:
                S = ((means - means.mean(0)) ** 2).mean(0)
            self.slice[what] = {"conv": S}


def statistics(h_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, standard deviation) over the pixels of each sample's channels, [B, C]."""
    m = h_BCHW.mean((2, 3))
    return m, (((h_BCHW - m[:, :, None, None]) ** 2).mean((2, 3)) + NUDGE).sqrt()


def test_fedfa() -> None:
    for momentum in (0.0, 0.9):
        agree(Case("cnn", momentum), FedFA)


@checked(*(replace(case, shape=(2, 6, 6)) for case in CASES))
@checked(*BOTH, eps=0.05, alpha=0.001, prior=20.0)
@checked(*BOTH, eps=1, statistics=False)
@checked(*BOTH, clip=0.5)
# Images of no client have no prior
@checked(replace(Case("cnn"), sites=False))
class Unskew(FedDyn, FedRDN):
    """unskew: relaxed balanced softmax, FedDyn's terms and merge, FedRDN's inputs, and the client's own prior at
    test time.

        l = CE( z + log s_k, y ) - <g_k, w> + alpha/2 ||w - w_t||^2,      s_k = (1 - eps) p_k + eps a / C
        g <- g min(1, clip / ||g||)
        a = |P| / m    P: the clients that took part in the round before, of all m; in round 1 all
        test, client k: z + log q_k,    q_kc = (n_kc + prior / C) / (n_k + prior);    images of no client: z
    Inputs, g and the merge are as in test_fedrdn.py and test_feddyn.py.
    """

    part = "unskew"
    alpha = 0.1
    eps = 0.3
    prior = 1.0
    statistics = True
    clip = 10.0

    def begin(self) -> None:
        FedDyn.begin(self)
        self.slice["answered"] = torch.tensor(1.0)

    def exchange(self, cohort: list[int]) -> None:
        if self.statistics and self.t == 0:
            before = self.slice
            FedRDN.exchange(self, cohort)
            self.slice |= before

    def merge(self, replies: list[Reply]) -> Weights:
        self.slice["answered"] = torch.tensor(
            len(replies) / sum(len(self.given.rows(k)) > 0 for k in range(self.clients))
        )
        return FedDyn.merge(self, replies)

    def arrive(self, c: Client) -> None:
        FedDyn.arrive(self, c)
        if self.statistics:
            FedRDN.arrive(self, c)

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return FedRDN.batch(self, c, x, y) if self.statistics else (x, y)

    def loss(self, c: Client, seen: Pass) -> Tensor:
        s = (1 - self.eps) * c.counts / c.n + self.eps * self.slice["answered"] / CLASSES
        weighed = s * seen.z.exp()
        plain = super().loss(c, seen) - super(FedDyn, self).loss(c, seen)
        return plain - ((weighed * seen.y).sum(1) / weighed.sum(1)).log().mean()

    def gradient(self, c: Client) -> None:
        torch.nn.utils.clip_grad_norm_(list(c.parameters.values()), self.clip)

    def answers(self) -> dict[int, Tensor]:
        plain = {k: self.evaluated(self.w, self.tests_of(k))[0] for k in range(self.clients)}
        z = FedRDN.answers(self) if self.statistics else plain
        return {k: z_k + self.own_prior(k) if k >= 0 else z_k for k, z_k in z.items()}

    def own_prior(self, k: int) -> Tensor:
        counts = self.y[self.given.rows(k)].sum(0)
        return torch.log((counts + self.prior / CLASSES) / (counts.sum() + self.prior))


test_agreement = agreement_test(globals())
