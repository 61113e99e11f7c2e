"""signSGD with majority vote (Bernstein et al., ICLR 2019, algorithm 1), with a round's change in place of a
gradient.

    w <- w + lr sign(sum_k sign(w_k - w));    where a client's change is 0, a coin is its vote
Running statistics of batch normalisation take the plain mean.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.encoding import Encoded
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class SignSGD(Encoded):
    part = "signsgd"
    weighting = "equal"
    memory = False
    lr = 0.01

    def read(self, k: int, v: Tensor) -> Tensor:
        coins = torch.randint(2, v.shape, generator=self.draws(k, "coins"))
        return torch.where(v == 0, 2.0 * coins - 1, v.sign())

    def merge(self, replies: list[Reply]) -> Weights:
        votes = {n: sum(r.w[n] - self.w[n] for r in replies) for n in self.learned}
        moved = {n: self.w[n] + self.lr * torch.as_tensor(v).round().sign() for n, v in votes.items()}
        return self.weighted_mean(replies) | moved


def test_signsgd() -> None:
    agree(Case("cnn", 0.9), SignSGD, lr=0.002)
