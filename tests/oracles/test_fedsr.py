"""FedSR (Nguyen et al., NeurIPS 2022, as its code has it): z ~ N(h, s^2); CE(head(z)) + l2r mean |z| + cmi
mean KL(c z || r(z|y)).

s = softplus(A h + a); r(z|y) is normal with mean m_y and standard deviation softplus(r_y). m, r and c stay
with their clients.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Law
from tests.oracles.values import Client, Pass
from unskew.methods.fedsr import FedSR as Engine


class FedSR(FedAvg):
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


def test_fedsr() -> None:
    agree(Case("cnn", 0.9), FedSR, l2r=0.2, cmi=0.1)


def test_merged() -> None:
    agree(Case(), FedSR, cmi=0.1, merged=True)


def test_what_features_tell_beyond_the_class_is_nothing_where_they_are_of_its_distribution() -> None:
    """Class 0 has N(1, 2^2): h = 1 with s = 2 tells nothing; h = 3 with s = 1 tells ln 2 + (1 + 4) / 8 - 1/2
    nats."""
    r = math.log(math.expm1(2.0))
    w = {
        "fedsr.m": torch.tensor([[1.0], [9]]),
        "fedsr.r": torch.full((2, 1), r),
        "fedsr.c": torch.tensor(-1.0),
    }
    told = Engine().beyond(w, -torch.tensor([[1.0], [3]]), torch.tensor([[2.0], [1]]), torch.eye(2)[[0, 0]])
    torch.testing.assert_close(told, torch.tensor([0, math.log(2) + 5 / 8 - 0.5]))
