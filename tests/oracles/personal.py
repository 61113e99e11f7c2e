"""What oracles of personalised methods have in common: how clients with weights of their own are scored."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.plain import FedAvg


class Divided(FedAvg):
    """Clients keep weights of the model, so each that took part is scored by the server's weights with its own in them."""

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w | kept, self.tests_of(k))[0] for k, kept in self.kept.items()}
