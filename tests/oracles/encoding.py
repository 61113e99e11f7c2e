"""What oracles of methods that encode weights have in common: a client's weights arrive as the server reads
them.

Letters: D numbers of all trained weights together.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Weights
from tests.oracles.values import Client, Reply


class Encoded(FedAvg):
    """v_D is the change of a client's trained weights, with what it has not sent before where it remembers
    that."""

    memory = True

    def read(self, k: int, v: Tensor) -> Tensor:
        """[D]: what the server makes of the message in which v is sent."""
        raise NotImplementedError

    def arrive(self, c: Client) -> None:
        if self.memory:
            zeros = torch.zeros(sum(self.w[n].numel() for n in self.learned), dtype=torch.float64)
            self.private.setdefault(c.k, {"error": zeros})

    def train(self, k: int) -> Reply:
        reply = super().train(k)
        v = torch.cat([(reply.w[n] - self.w[n]).flatten() for n in self.learned])
        if self.memory:
            v = v + self.private[k]["error"]
        arrived = self.read(k, v)
        if self.memory:
            self.private[k] = {"error": v - arrived}
        return replace(reply, w=reply.w | {n: self.w[n] + piece for n, piece in self.parts(arrived).items()})

    def parts(self, v: Tensor) -> Weights:
        """The numbers of each weight, in its shape."""
        pieces = v.split([self.w[n].numel() for n in self.learned])
        return {n: piece.reshape(self.w[n].shape) for n, piece in zip(self.learned, pieces)}

    def draws(self, k: int, purpose: str) -> torch.Generator:
        """What client and server both draw from."""
        return self.given.generator(self.t, k, self.part, purpose)
