"""q-FedAvg (Li et al., ICLR 2020, algorithm 2), L = 1 / (lr S) unless it is given, S the mean number of a
client's batches, clients weighted by their share of the samples.

    Delta w_k = L (w_t - w_k);    Delta_k = F_k^q(w_t) Delta w_k;    h_k = q F_k^(q-1)(w_t) ||Delta w_k||^2 +
    L F_k^q(w_t) w_{t+1} = w_t - sum_k p_k Delta_k / sum_k p_k h_k
Running statistics of batch normalisation take the plain mean.
"""

import math

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class QFFL(FedAvg):
    part = "qffl"
    q = 0.1
    L = 0.0

    def loss_of(self, k: int) -> float:
        rows = self.given.rows(k)
        return float(cross_entropy(self.evaluated(self.w, self.x[rows])[0], self.y[rows]))

    def merge(self, replies: list[Reply]) -> Weights:
        p = self.shares_of_weight(replies)
        S = sum(p_k * self.case.epochs * math.ceil(r.n / self.case.batch) for p_k, r in zip(p, replies))
        w, L = self.weighted_mean(replies), self.L or 1 / (self.case.lr * S)
        steps, h = {n: 0 * w[n] for n in self.learned}, 0.0
        for p_k, r in zip(p, replies):
            F_k = self.loss_of(r.k)
            Dw = {n: L * (self.w[n] - r.w[n]) for n in self.learned}
            h += p_k * (
                self.q * F_k ** (self.q - 1) * sum(float((d**2).sum()) for d in Dw.values()) + L * F_k**self.q
            )
            steps = {n: step + p_k * F_k**self.q * Dw[n] for n, step in steps.items()}
        return w | {n: self.w[n] - step / h for n, step in steps.items()}


def test_qffl() -> None:
    agree(Case("cnn", 0.9), QFFL, q=2.5, L=3.0)


def test_its_default() -> None:
    agree(Case(), QFFL)
