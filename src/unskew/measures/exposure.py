"""Exposure (FLea, Xia et al., KDD 2024, Fig. 9a): who has received something of whose.

xi_ij(t) = 1 once client j was sent something that client i shared, in any round up to t
eps(t)   = sum_ij xi_ij(t) / K^2                directed pairs, the diagonal included
Where each client takes part with probability p, independently in every round, and a round's shares reach the clients
of the next one only, E eps(t) = 1 - (1 - p^2)^(t - 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Exposure:
    """Who has received something of whose so far.

    since_KK[i, j]: the round in which client j first received something of client i's; 0 means never.
    """

    def __init__(self, clients: int):
        self.since_KK = np.zeros((clients, clients), dtype=np.int64)

    def sent(self, t: int, owners: Sequence[int], receivers: Sequence[int]) -> None:
        """Note that in round t the receivers were sent what the owners had shared."""
        if len(owners) and len(receivers):
            pairs = np.ix_(np.asarray(owners), np.asarray(receivers))
            self.since_KK[pairs] = np.where(self.since_KK[pairs] == 0, t, self.since_KK[pairs])

    @property
    def share(self) -> float:
        """eps(t) for the rounds so far, in [0, 1]."""
        return float((self.since_KK > 0).mean()) if self.since_KK.size else 0.0


def expected(p: float, t: int) -> float:
    """E eps(t) where every client takes part with probability p, independently in every round."""
    return 1 - (1 - p * p) ** (t - 1)
