"""FedPer (Arivazhagan et al. 2019, algorithm 1): the base is averaged by size, the personalisation layers
stay.

Client k trains both together; it is scored by the server's base under its own layers, however old these are.
"""

import pytest

from tests.oracles.agreement import agree
from tests.oracles.personal import Divided
from tests.oracles.tiny import Case


class FedPer(Divided):
    part = "fedper"
    blocks = 1

    def keeps(self, name: str) -> bool:
        own = {1: ("head",), 2: ("fc", "head")}[self.blocks]
        return name.split(".")[0] in own


@pytest.mark.parametrize(("model", "blocks"), [("mlp", 1), ("cnn", 2)])
def test_fedper(model: str, blocks: int) -> None:
    agree(Case(model, 0.9), FedPer, blocks=blocks)
