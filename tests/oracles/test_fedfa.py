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

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Law, Tree, Weights
from tests.oracles.values import Client, Reply

CHANNELS = 3
NUDGE = 1e-6


class FedFA(FedAvg):
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


def test_perturbed_at_every_step() -> None:
    agree(Case("cnn", 0.9), FedFA, p=1.0)


def test_one_variance_as_in_the_public_code() -> None:
    agree(replace(Case("cnn"), attendance=((1, 2), (2, 4), (0, 3))), FedFA, variant="official")
