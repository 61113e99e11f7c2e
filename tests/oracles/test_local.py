"""Local training: every client keeps a model of its own, and nothing is merged."""

from torch import Tensor

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case


class Local(FedAvg):
    part = "local"

    def keeps(self, name: str) -> bool:
        return True

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


@everywhere
def test_local(case: Case) -> None:
    agree(case, Local)
