"""EF-signSGD (Karimireddy et al., ICML 2019, arXiv 1901.09847): signs with error feedback, one bit a number.

Client: v = (w_S - w_t) + e_k;   sends  s_k = mean_i |v_i| sign(v)  for each tensor
        e_k' = v - s_k      e_k begins at 0; sign(0) = 1
Server: uses w_t + s_k as the client's weights
Differs from the paper: v is a round's change after local steps instead of one gradient times the learning
rate. Statistics of batch normalisation and the Shares of other Parts are sent uncompressed, and so are the
server's messages.
"""

from dataclasses import dataclass

import torch

from unskew.core import Client, Fed, Keys, Part, Share, Tensor, Tree, Weights
from unskew.methods.shared.weights import (
    count_numbers,
    flatten_change,
    pack_bits,
    packed_size,
    unflatten_change,
    unpack_bits,
)


@dataclass(frozen=True)
class EFSign(Part):
    """Sends the sign of every change and the mean size, and adds the remainder to later rounds."""

    name = "efsign"
    family = "compression"
    use_when = (
        "Only a thirtieth of the bytes may be sent, and clients return often enough to send the remainder"
        " later."
    )

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"error": torch.zeros(count_numbers(fed), device=w[fed.shared[0]].device)}

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
        sizes = Share(
            (len(fed.shared),), low=0, reads="each", what="mean sizes", kind="weights", samples="client"
        )
        return {"signs": bits, "sizes": sizes}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        v_D = flatten_change(change) + c.mine["error"]
        up_D = v_D >= 0
        sizes = torch.stack([t.abs().mean() for t in unflatten_change(v_D, change, c.fed).values()])
        sent_D = flatten_change(self._scaled(up_D, sizes, change, c.fed))
        return {"signs": pack_bits(up_D, 1), "sizes": sizes}, {"error": v_D - sent_D}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        return self._scaled(unpack_bits(tree["signs"], 1, count_numbers(fed)), tree["sizes"], w, fed)

    def _scaled(self, up_D: Tensor, sizes: Tensor, w: Weights, fed: Fed) -> Weights:
        """The signs, times the mean absolute change of their tensor."""
        signs = unflatten_change(2.0 * up_D.float() - 1.0, w, fed)
        return {n: size * t for (n, t), size in zip(signs.items(), sizes)}
