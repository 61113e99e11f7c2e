"""FedDisco (Ye et al., ICML 2023, eq. 5 and 6): d_k between a client's label shares D_k and the uniform T.

p_k = ReLU(n_k / n - a d_k + b) / sum_j ReLU(n_j / n - a d_j + b)
d_k = KL(D_k || T) / sum_j KL(D_j || T), or ||D_k - T||_2; n_k / n where nothing is left of anybody
"""

import math

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case
from tests.oracles.values import Reply


class FedDisco(FedAvg):
    part = "feddisco"
    a = 0.5
    b = 0.1
    measure = "kl"

    def discrepancy(self, k: int) -> float:
        D = (self.y[self.given.rows(k)].sum(0) / len(self.given.rows(k))).tolist()
        if self.measure == "l2":
            return math.sqrt(sum((D_c - 1 / CLASSES) ** 2 for D_c in D))
        return sum(D_c * math.log(D_c / (1 / CLASSES)) for D_c in D if D_c > 0)

    def shares_of_weight(self, replies: list[Reply]) -> list[float]:
        p, d = super().shares_of_weight(replies), [self.discrepancy(r.k) for r in replies]
        if self.measure == "kl":
            d = [d_k / sum(d) for d_k in d]
        e = [max(0.0, p_k - self.a * d_k + self.b) for p_k, d_k in zip(p, d)]
        return [e_k / sum(e) for e_k in e] if sum(e) else p


def test_feddisco() -> None:
    """Nothing is left of client 0, whose one sample has one class."""
    agree(Case("cnn", 0.9), FedDisco)


def test_by_l2() -> None:
    agree(Case(), FedDisco, measure="l2", a=0.2)


def test_weights_by_size_where_nothing_is_left_of_anybody() -> None:
    agree(Case(), FedDisco, measure="l2", a=100.0)
