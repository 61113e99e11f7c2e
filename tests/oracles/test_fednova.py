"""FedNova (Wang et al., NeurIPS 2020, eq. 5 and 9): normalised averaging.

    w_t - w_k = lr sum_s a_ks g_k(s):    the gradient of step s of S enters with the coefficient a_ks
    d_k = (w_t - w_k) / ||a_k||_1;    tau_eff = sum_k p_k ||a_k||_1;    w_{t+1} = w_t - tau_eff sum_k p_k d_k
Plain SGD has a_ks = 1, momentum rho has a_ks = 1 + rho + ... + rho^(S - 1 - s). Running statistics of batch
normalisation take the plain mean.
"""

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply


class FedNova(FedAvg):
    part = "fednova"

    def accumulated(self, steps: int) -> float:
        """||a_k||_1, by adding up every coefficient."""
        total = 0.0
        for s in range(steps):
            total += sum(self.case.momentum**later for later in range(steps - s))
        return total

    def merge(self, replies: list[Reply]) -> Weights:
        w, p, a = (
            self.weighted_mean(replies),
            self.shares_of_weight(replies),
            [self.accumulated(r.steps) for r in replies],
        )
        tau = sum(p_k * a_k for p_k, a_k in zip(p, a))
        for n in self.learned:
            d = [(self.w[n] - r.w[n]) / a_k for a_k, r in zip(a, replies)]
            w[n] = self.w[n] - tau * sum(p_k * d_k for p_k, d_k in zip(p, d))
        return w


@everywhere
def test_fednova(case: Case) -> None:
    agree(case, FedNova)
