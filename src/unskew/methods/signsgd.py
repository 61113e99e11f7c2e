"""signSGD (Bernstein et al., ICML 2018, arXiv 1802.04434, and ICLR 2019, arXiv 1810.05291): majority vote.

Client: sends sign(w_S - w_t), one bit for each number
Server: w_{t+1} = w_t + lr sign(sum_k sign(w_k - w_t))
        every client has one vote; a weight with as many votes for as against does not move
Differs from the paper: the sign is that of a round's change after local steps, not of a gradient. For a
change of 0 (an input that is 0 everywhere) the vote is drawn from the run's seed, because one bit has no
third value. Statistics of batch normalisation take the plain mean; they and the Shares of other Parts are
sent uncompressed, and so are the server's messages. The mean size of a change is sent, too: 4 bytes by which
the server detects divergence.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, Fed, Keys, Part, Share, Tree, Ups, Weights
from unskew.formats.setting_ranges import Rate
from unskew.merge.mean import weighted_mean
from unskew.methods.shared.weights import (
    count_numbers,
    flatten_change,
    pack_bits,
    packed_size,
    unflatten_change,
    unpack_bits,
)


@dataclass(frozen=True)
class SignSGD(Part):
    """Lets clients vote on the direction of every weight's step."""

    lr: Annotated[Rate, "how far every weight moves in a round"] = 0.01
    name = "signsgd"
    family = "compression"
    use_when = (
        "Few bits may be sent, or a minority of the clients may send arbitrary data; clients are much alike."
    )
    merges = True
    weights_read = "each"
    weighting = "equal"

    def encoded(self, fed: Fed) -> dict[str, Share]:
        bits = Share(
            (packed_size(count_numbers(fed), 1),),
            torch.uint8,
            0,
            255,
            reads="each",
            what="signs",
            kind="weights",
            samples="client",
        )
        size = Share(
            (1,), low=0, reads="each", what="mean size of a change", kind="weights", samples="client"
        )
        return {"signs": bits, "size": size}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        v_D = flatten_change(change)
        coin_D = torch.randint(2, v_D.shape, generator=keys("coins")).to(v_D.device)
        return {
            "signs": pack_bits(torch.where(v_D == 0, coin_D, v_D > 0), 1),
            "size": v_D.abs().mean(0, keepdim=True),
        }, {}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        signs_D = 2.0 * unpack_bits(tree["signs"], 1, count_numbers(fed)) - 1.0
        return unflatten_change(self.lr * signs_D, w, fed)

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        votes = {n: sum(torch.sign(r.weights[n] - w[n]) for r in ups.replies) for n in fed.shared}
        return weighted_mean(w, ups) | {
            n: w[n] + self.lr * torch.sign(torch.as_tensor(v)) for n, v in votes.items()
        }, s
