"""q-FedAvg (Li et al., ICLR 2020, algorithm 2), L = 1 / lr unless it is given, clients weighted by their
share of the samples.

    Delta w_k = L (w_t - w_k);    Delta_k = F_k^q(w_t) Delta w_k;    h_k = q F_k^(q-1)(w_t) ||Delta w_k||^2 +
    L F_k^q(w_t) w_{t+1} = w_t - sum_k p_k Delta_k / sum_k p_k h_k
Running statistics of batch normalisation take the plain mean.
"""

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg, cross_entropy
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class QFFL(FedAvg):
    part = "qffl"
    q = 1.0
    L = 0.0

    def loss_of(self, k: int) -> float:
        rows = self.given.rows(k)
        return float(cross_entropy(self.evaluated(self.w, self.x[rows])[0], self.y[rows]))

    def merge(self, replies: list[Reply]) -> Weights:
        w, L = self.weighted_mean(replies), self.L or 1 / self.case.lr
        steps, h = {n: 0 * w[n] for n in self.learned}, 0.0
        for p_k, r in zip(self.shares_of_weight(replies), replies):
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
