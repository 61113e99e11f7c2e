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

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, everywhere, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Law
from tests.oracles.values import Client


class FedRDN(FedAvg):
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


@everywhere
def test_fedrdn(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), FedRDN)


@on_both_models
def test_the_mean_pair_for_everybody(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), FedRDN, mean=True)


@on_both_models
def test_two_clients_a_batch_as_in_the_public_code(case: Case) -> None:
    agree(replace(case, shape=(2, 6, 6)), FedRDN, variant="official")


def test_images_of_no_client_take_the_mean_pair() -> None:
    agree(replace(Case("cnn"), sites=False), FedRDN)


def test_a_client_that_did_not_report_takes_the_mean_pair() -> None:
    """Client 0's pixels are finite, their sum is not: the server refuses its statistics."""
    agree(replace(Case(), overflowing=(0,), attendance=((1, 3, 4), (1, 2), (2, 4))), FedRDN)
