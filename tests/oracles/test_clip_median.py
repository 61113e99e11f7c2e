"""Clipping to the median norm (cf. Andrew et al., NeurIPS 2021).

    d_k = w_k - w;    w <- w + sum_k p_k d_k min(1, factor m / ||d_k||),    m: the median of all ||d_k||
||.|| is over all trained weights together, and again over all running statistics of batch normalisation
together.
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
        w, p = dict(self.w), self.shares_of_weight(replies)
        for names in (self.learned, [n for n in replies[0].w if n not in self.learned]):
            d = [{n: r.w[n] - self.w[n] for n in names} for r in replies]
            norms = [sum(float((t**2).sum()) for t in d_k.values()) ** 0.5 for d_k in d]
            most = self.factor * statistics.median(norms)
            keep = [
                min(1, most / norm) if norm else 1 for norm in norms
            ]  # statistics of one sample do not move
            for n in names:
                w[n] = self.w[n] + sum(p_k * d_k[n] * keep_k for p_k, d_k, keep_k in zip(p, d, keep))
        return w


@everywhere
def test_clip_median(case: Case) -> None:
    agree(case, ClipMedian)


def test_a_factor() -> None:
    agree(Case("cnn"), ClipMedian, factor=0.5)
