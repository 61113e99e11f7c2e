"""FedPHP (Li et al., ECML PKDD 2021): (1 - lam) CE + lam MMD(h, h_p), and p <- m p + (1 - m) w with m = 0.9 z
/ (takes T).

MMD: mean_ij k(h_i, h_j) + k(p_i, p_j) - k(h_i, p_j) - k(p_i, h_j), five Gaussian kernels of 1/4 to 4 times
the mean squared distance of two of the 2 B features. With teach=logits  -sum_c softmax(z_p / 4)_c log
softmax(z)_c.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Tree
from tests.oracles.values import Client, Pass
from unskew.methods.fedphp import discrepancy


class FedPHP(FedAvg):
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


def test_fedphp() -> None:
    agree(Case("cnn", 0.9), FedPHP, lam=0.4, takes=0.6)


def test_taught_by_logits() -> None:
    agree(Case(), FedPHP, lam=0.4, teach="logits")


def test_features_that_are_equal_do_not_differ_and_padding_does_not_count() -> None:
    """Two points at distance 2 from two others, all pairs alike: s = 4 (4 + 4) / 12; k(0) = 5."""
    h, p, both = torch.zeros(2, 1), torch.full((2, 1), 2.0), torch.ones(2)
    s = 8 * 4 / 12
    k = sum(torch.exp(torch.tensor(-4 / (s * width))) for width in (0.25, 0.5, 1, 2, 4))
    torch.testing.assert_close(discrepancy(h, p, both), 10 - 2 * k)
    assert discrepancy(h, h, both) == 0
    padded = discrepancy(torch.cat([h, p]), torch.cat([p, 7 * p]), torch.tensor([1.0, 1, 0, 0]))
    torch.testing.assert_close(padded, 10 - 2 * k)
