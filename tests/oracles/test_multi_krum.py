"""Multi-Krum (Blanchard et al., NeurIPS 2017, section 4), on weights after local training.

    s(k) = sum of ||w_k - w_j||^2 over the K - f - 2 clients j nearest to k;    the K - f lowest scores are
    averaged
f = share K, rounded up and such that 2 f + 3 <= K; 1 of three or four. Running statistics of batch
normalisation count in
no distance: of each coordinate's K values the f largest and the f smallest are left out, the others averaged.
"""

import math
from dataclasses import replace

import torch

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply

ATTENDANCE = ((0, 1, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4))


class MultiKrum(FedAvg):
    part = "multi_krum"
    share = 0.2

    def merge(self, replies: list[Reply]) -> Weights:
        K = len(replies)
        f = math.ceil(self.share * K)
        while f > 1 and 2 * f + 3 > K:
            f -= 1
        scores = []
        for r in replies:
            others = sorted(self.distance(r, q) for q in replies if q is not r)
            scores.append(sum(others[: max(1, K - f - 2)]))
        best = sorted(range(K), key=lambda i: scores[i])[: K - f]
        w = self.weighted_mean([replies[i] for i in best])
        for n in set(replies[0].w) - set(self.learned):
            at_each = torch.stack([r.w[n] for r in replies]).T.tolist()
            w[n] = torch.tensor([sum(sorted(v)[f : K - f]) / (K - 2 * f) for v in at_each]).double()
        return w

    def distance(self, a: Reply, b: Reply) -> float:
        """||w_a - w_b||^2"""
        return sum(float(((a.w[n] - b.w[n]) ** 2).sum()) for n in self.learned)


@everywhere
def test_multi_krum(case: Case) -> None:
    """With this seed, one neighbour more or fewer changes who is chosen."""
    agree(replace(case, attendance=ATTENDANCE, seed=5), MultiKrum)


def test_its_default_leaves_out_one_of_four_and_of_three() -> None:
    """M9: it was the mean below five answering clients."""
    agree(Case("cnn"), MultiKrum)


def test_more_bad_clients_than_it_can_bear() -> None:
    agree(replace(Case("cnn"), attendance=ATTENDANCE), MultiKrum, share=0.4)
