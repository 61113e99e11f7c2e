"""Random-k with error feedback (Stich, Cordonnier & Jaggi, NeurIPS 2018, arXiv 1809.07599).

Client: v = (w_S - w_t) + e_k;   sends v at k indices drawn at random
        s_k = v there and 0 elsewhere;   e_k' = v - s_k
        k = share D, D numbers in all;   e_k begins at 0
Server: uses w_t + s_k as the client's weights
Both ends draw the indices from the run's seed, the round and the client, so only values are sent: 4 bytes for
each of k.
Differs from the paper: v is a round's change after local steps, not one gradient times the learning rate.
Without memory s_k is D / k times as large, which makes it unbiased. Statistics of batch normalisation and the
Shares of other Parts are sent uncompressed, and so are the server's messages.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, Fed, Keys, Part, Share, Tensor, Tree, Weights
from unskew.formats.setting_ranges import PositiveFraction
from unskew.methods.shared.weights import count_numbers, flatten_change, unflatten_change
from unskew.methods.topk import count_sent


@dataclass(frozen=True)
class RandomK(Part):
    """Sends changes of weights drawn at random, and adds the others to later rounds."""

    share: Annotated[PositiveFraction, "part of the numbers that is sent"] = 0.05
    memory: Annotated[bool, "add what was not sent to the next round's change (error feedback)"] = True
    name = "randomk"
    family = "compression"
    use_when = (
        "As `topk`, if no message may reveal which weights changed most; it needs more rounds, and half"
        " the bytes."
    )
    untuned = {"share": "it decides how much leaves a client"}
    neutral = {"share": 1.0}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return (
            {"error": torch.zeros(count_numbers(fed), device=w[fed.shared[0]].device)} if self.memory else {}
        )

    def encoded(self, fed: Fed) -> dict[str, Share]:
        k = count_sent(self.share, count_numbers(fed))
        return {"values": Share((k,), reads="each", what="some changes", kind="weights", samples="client")}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        v_D = flatten_change(change) + (c.mine["error"] if self.memory else 0.0)
        at_k = self._drawn(len(v_D), keys).to(v_D.device)
        return {"values": v_D[at_k]}, {"error": v_D.index_fill(0, at_k, 0.0)} if self.memory else {}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        D, values = count_numbers(fed), tree["values"]
        at_k, scale = self._drawn(D, keys).to(values.device), 1.0 if self.memory else D / len(values)
        return unflatten_change(
            torch.zeros(D, device=values.device).index_copy(0, at_k, scale * values), w, fed
        )

    def _drawn(self, D: int, keys: Keys) -> Tensor:
        return torch.randperm(D, generator=keys("indices"))[: count_sent(self.share, D)]
