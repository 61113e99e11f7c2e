"""Standardise: x <- (x - mu) / sigma per channel, with the mean and the deviation over all clients' samples.

The constants are those of the samples of all that reported, put together; a client sends its own two numbers
a channel.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Client


class Standardise(FedAvg):
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


@everywhere
def test_standardise(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), Standardise)


def test_a_client_that_did_not_report_does_not_count() -> None:
    agree(replace(Case(), overflowing=(0,), attendance=((1, 3, 4), (1, 2), (2, 4))), Standardise)
