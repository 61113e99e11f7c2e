"""LG-FedAvg (Liang et al. 2020, algorithm 1): the global layers are averaged by size, the local
representation stays.

What stays has running statistics, too.
"""

import pytest

from tests.oracles.agreement import agree
from tests.oracles.personal import Divided
from tests.oracles.tiny import Case


class LGFedAvg(Divided):
    part = "lg_fedavg"
    blocks = 1

    def keeps(self, name: str) -> bool:
        merged = {1: ("head",), 2: ("fc", "head")}[self.blocks]
        return name.split(".")[0] not in merged


@pytest.mark.parametrize(("model", "blocks"), [("mlp", 1), ("cnn", 2)])
def test_lg_fedavg(model: str, blocks: int) -> None:
    agree(Case(model, 0.9), LGFedAvg, blocks=blocks)
