"""Clipping to the median norm (cf. Andrew et al., NeurIPS 2021).

    d_k = w_k - w;    w <- w + sum_k p_k d_k min(1, factor m / ||d_k||),    m: the median of all ||d_k||
||.|| is over all trained weights together; running statistics of batch normalisation take the plain mean.
"""

import statistics

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class ClipMedian(FedAvg):
    part = "clip_median"
    factor = 1.0

    def merge(self, replies: list[Reply]) -> Weights:
        d = [{n: r.w[n] - self.w[n] for n in self.learned} for r in replies]
        norms = [sum(float((t**2).sum()) for t in d_k.values()) ** 0.5 for d_k in d]
        most = self.factor * statistics.median(norms)
        w, p = self.weighted_mean(replies), self.shares_of_weight(replies)
        for n in self.learned:
            w[n] = self.w[n] + sum(p_k * d_k[n] * min(1, most / norm) for p_k, d_k, norm in zip(p, d, norms))
        return w


@everywhere
def test_clip_median(case: Case) -> None:
    agree(case, ClipMedian)


def test_a_factor() -> None:
    agree(Case("cnn"), ClipMedian, factor=0.5)
