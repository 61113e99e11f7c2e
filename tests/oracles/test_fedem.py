"""FedEM (Marfoq et al., NeurIPS 2021, algorithm 1 with local SGD).

q_ij ~ pi_j exp(-l(th_j; i)) at the round's beginning;    pi_j <- mean_i q_ij;    th_j descends mean_i q_ij
l(th_j; i) p = sum_j pi_j softmax(z_j): with a client's own pi for the client, with 1/M for everybody else
"""

import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.personal import logits_with
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights, named_tensors
from tests.oracles.values import Client, Pass


class FedEM(FedAvg):
    part = "fedem"
    models = 3

    def begin(self) -> None:
        self.names = [n for n, _ in named_tensors(self.module)]
        others = {}
        for j in range(1, self.models):
            for n in self.names:
                order = torch.randperm(self.w[n].numel(), generator=self.given.generator("fedem", n, j))
                others[f"fedem.{j}.{n}"] = self.w[n].flatten()[order].reshape(self.w[n].shape)
        self.w = self.w | others | {"fedem.pi": torch.full((self.models,), 1 / self.models).double()}

    def keeps(self, name: str) -> bool:
        return name == "fedem.pi"

    def model_of(self, w: Weights, j: int) -> Weights:
        return {n: w[f"fedem.{j}.{n}" if j else n] for n in self.names}

    def q(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        likelihoods = []
        for j in range(self.models):
            p = self.evaluated(self.model_of(w, j), x)[0].softmax(1)
            likelihoods.append(w["fedem.pi"][j] * (p**y).prod(1))
        return torch.stack(likelihoods, 1) / torch.stack(likelihoods).sum(0)[:, None]

    def arrive(self, c: Client) -> None:
        rows = self.given.rows(c.k)
        c.extra["fedem.pi"].requires_grad_(False)
        c.extra["fedem.pi"].copy_(self.q(c.start, self.x[rows], self.y[rows]).mean(0))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        q = self.q(c.start, seen.x, seen.y)
        total = torch.zeros((), dtype=torch.float64)
        for j in range(self.models):
            th = {n: c.extra[f"fedem.{j}.{n}"] for n in self.names} if j else None
            z = logits_with(c.model, th, seen.x) if th else seen.z
            total = total - (q[:, j] * (seen.y * z.log_softmax(1)).sum(1)).mean()
        return total

    def mixture(self, w: Weights, x: Tensor) -> Tensor:
        p = [
            self.evaluated(self.model_of(w, j), x)[0].softmax(1) * w["fedem.pi"][j]
            for j in range(self.models)
        ]
        return torch.stack(p).sum(0).log()

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.mixture(self.w | kept, self.tests_of(k)) for k, kept in self.kept.items()}
        return own | {-1: self.mixture(self.w, self.x_test)}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedem(momentum: float) -> None:
    agree(Case(momentum=momentum), FedEM)


def test_two_models() -> None:
    agree(Case(), FedEM, models=2)
