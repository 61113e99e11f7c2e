"""Top-k with error feedback (Stich, Cordonnier & Jaggi, NeurIPS 2018, arXiv 1809.07599).

Client: v = (w_S - w_t) + e_k
        sends s_k: v at the k indices of the largest |v|, 0 elsewhere;   e_k' = v - s_k
        k = share D, D numbers in all;   e_k begins at 0
Server: uses w_t + s_k as the client's weights
A message has 8 bytes for each of the k numbers, an index and a value, instead of 4 for each of D.
Differs from the paper: v is a round's change after local steps, not one gradient times the learning rate, as
in Qsparse-local-SGD (Basu et al., NeurIPS 2019); the k largest are found over all weights together.
Statistics of batch normalisation and the Shares of other Parts are sent uncompressed, and so are the server's
messages. `memory=False` drops the remainder.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, DecodeError, Fed, Keys, Part, Share, Tree, Weights
from unskew.formats.setting_ranges import PositiveFraction
from unskew.methods.shared.weights import count_numbers, flatten_change, unflatten_change


@dataclass(frozen=True)
class TopK(Part):
    """Sends the largest changes of the weights, and adds the others to later rounds."""

    share: Annotated[PositiveFraction, "part of the numbers that is sent"] = 0.05
    memory: Annotated[bool, "add what was not sent to the next round's change (error feedback)"] = True
    name = "topk"
    family = "compression"
    use_when = (
        "Links are slow, clients come back often, and the model can be learnt from few of its weights at"
        " a time."
    )
    untuned = {"share": "it decides how much leaves a client"}
    neutral = {"share": 1.0}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return (
            {"error": torch.zeros(count_numbers(fed), device=w[fed.shared[0]].device)} if self.memory else {}
        )

    def encoded(self, fed: Fed) -> dict[str, Share]:
        D, k = count_numbers(fed), count_sent(self.share, count_numbers(fed))
        return {
            "indices": Share(
                (k,), torch.int32, 0, D - 1, reads="each", what="which", kind="weights", samples="client"
            ),
            "values": Share((k,), reads="each", what="their change", kind="weights", samples="client"),
        }

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        v_D = flatten_change(change) + (c.mine["error"] if self.memory else 0.0)
        at_k = v_D.abs().topk(count_sent(self.share, len(v_D))).indices.sort().values
        tree = {"indices": at_k.to(torch.int32), "values": v_D[at_k]}
        return tree, {"error": v_D.index_fill(0, at_k, 0.0)} if self.memory else {}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        at_k = tree["indices"].long()
        if bool((at_k[1:] <= at_k[:-1]).any()):
            raise DecodeError("its indices do not grow")
        v_D = torch.zeros(count_numbers(fed), device=at_k.device)
        return unflatten_change(v_D.index_copy(0, at_k, tree["values"]), w, fed)


def count_sent(share: float, count: int) -> int:
    """The number of values to send, at least one."""
    return max(1, round(share * count))
