"""unskew: relaxed balanced softmax, FedDyn's terms and merge, FedRDN's inputs, and the client's own prior at
test time.

    l = CE( z + log s_k, y ) - <g_k, w> + alpha/2 ||w - w_t||^2,      s_k = (1 - eps) p_k + eps a / C
    a = |P| / m    P: the clients that took part in the round before, of all m; in round 1 all
    test, client k: z + log q_k,    q_kc = (n_kc + prior / C) / (n_k + prior);    images of no client: z
Inputs, g and the merge are as in test_fedrdn.py and test_feddyn.py.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.test_feddyn import FedDyn
from tests.oracles.test_fedrdn import FedRDN
from tests.oracles.tiny import CLASSES, Case, Weights
from tests.oracles.values import Client, Pass, Reply


class Unskew(FedDyn, FedRDN):
    part = "unskew"
    alpha = 0.1
    eps = 0.3
    prior = 1.0
    statistics = True

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

    def answers(self) -> dict[int, Tensor]:
        plain = {k: self.evaluated(self.w, self.tests_of(k))[0] for k in range(self.clients)}
        z = FedRDN.answers(self) if self.statistics else plain
        return {k: z_k + self.own_prior(k) if k >= 0 else z_k for k, z_k in z.items()}

    def own_prior(self, k: int) -> Tensor:
        counts = self.y[self.given.rows(k)].sum(0)
        return torch.log((counts + self.prior / CLASSES) / (counts.sum() + self.prior))


@everywhere
def test_unskew(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), Unskew)


@on_both_models
def test_its_settings(case: Case) -> None:
    agree(case, Unskew, eps=0.05, alpha=0.001, prior=20.0)
    agree(case, Unskew, eps=1, statistics=False)


def test_images_of_no_client_have_no_prior() -> None:
    agree(replace(Case("cnn"), sites=False), Unskew)
