"""Random-k with memory (Stich et al., NeurIPS 2018, algorithm 1), with a round's change in place of a
gradient's step.

    v = (w_k - w) + e_k;    s_k = v at k random places, else 0;    e_k <- v - s_k;    w <- w + sum_k p_k s_k
Without memory s_k is D / k times that, so that its mean over places is v.
"""

import torch
from torch import Tensor

from tests.oracles.agreement import agree
from tests.oracles.encoding import Encoded
from tests.oracles.tiny import Case


class RandomK(Encoded):
    part = "randomk"
    share = 0.05

    def read(self, k: int, v: Tensor) -> Tensor:
        count = max(1, round(self.share * len(v)))
        sent = torch.zeros_like(v)
        for place in torch.randperm(len(v), generator=self.draws(k, "indices"))[:count].tolist():
            sent[place] = v[place] * (1 if self.memory else len(v) / count)
        return sent


def test_randomk() -> None:
    agree(Case(), RandomK, share=0.1)


def test_without_memory() -> None:
    agree(Case(), RandomK, memory=False)
