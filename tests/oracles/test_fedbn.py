"""FedBN (Li et al., ICLR 2021, algorithm 1): averages every layer but batch normalisation's, which stay on
the client.

Weights, biases and running statistics are neither sent nor overwritten, however long a client is away. Client
k is scored by the server's weights with its own batch normalisation.
"""

import pytest
from torch import Tensor

from tests.oracles.agreement import CASES, agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case

NORMS = [case for case in CASES if case.model == "cnn"]


class FedBN(FedAvg):
    part = "fedbn"
    weighted = True

    @property
    def weighting(self) -> str:  # type: ignore[override]
        return "size" if self.weighted else "equal"

    def keeps(self, name: str) -> bool:
        return name in ("conv.1.weight", "conv.1.bias", "conv.1.running_mean", "conv.1.running_var")

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w | kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@pytest.mark.parametrize("case", NORMS, ids=lambda c: f"momentum{c.momentum:g}")
@pytest.mark.parametrize("weighted", [True, False])
def test_fedbn(case: Case, weighted: bool) -> None:
    agree(case, FedBN, weighted=weighted)
