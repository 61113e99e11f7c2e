"""QSGD (Alistarh et al., NeurIPS 2017, arXiv 1610.02132): rounds every change to a few levels at random.

Client: v = w_S - w_t, in buckets;   sends |v| of each bucket, and of each number its sign and level
        l_i
        l_i = floor(s |v_i| / |v| + u_i),   u_i uniform on [0, 1);   so  E[sign(v_i) |v| l_i / s] =
        v_i
        s = 2**(bits - 1) - 1 levels
Server: uses w_t + sign(v_i) |v| l_i / s as the client's weights
`fedpaq` is FedPAQ (Reisizadeh et al., AISTATS 2020, arXiv 1909.13014): one norm for all weights.
Differs from the paper: v is a round's change after local steps, as in FedPAQ, not a gradient; levels have a
fixed number of bits, where the paper uses Elias codes; buckets run over all weights together. Norms are
Euclidean (`norm=l2`) or, as in the paper's experiments, the largest |v_i| (`max`). Statistics of batch
normalisation and the Shares of other Parts are sent uncompressed, and so are the server's messages.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from unskew.core import Client, DecodeError, Fed, Keys, Part, Share, Tensor, Tree, Weights
from unskew.methods.shared.weights import (
    count_numbers,
    flatten_change,
    pack_bits,
    packed_size,
    unflatten_change,
    unpack_bits,
)


@dataclass(frozen=True)
class QSGD(Part):
    """Rounds the change of every weight to a few levels, at random and without bias."""

    bits: Annotated[Literal[2, 4, 8], "bits of each number, its sign among them"] = 4
    bucket: Annotated[int, Ge(0), Le(1 << 30), "how many numbers share a norm; 0: all of them"] = 512
    norm: Annotated[Literal["l2", "max"], "what a bucket's numbers are divided by"] = "max"
    name = "qsgd"
    family = "compression"
    use_when = "Links are slow and clients return rarely, so that none can send a remainder later."
    presets = {"fedpaq": {"bits": 8, "bucket": 0, "norm": "l2"}}

    def encoded(self, fed: Fed) -> dict[str, Share]:
        D = count_numbers(fed)
        norms = Share(
            (-(-D // self._bucket(D)),), low=0, reads="each", what="norms", kind="weights", samples="client"
        )
        levels = Share(
            (packed_size(D, self.bits),),
            torch.uint8,
            0,
            255,
            reads="each",
            what="levels",
            kind="weights",
            samples="client",
        )
        return {"norms": norms, "levels": levels}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        v_D = flatten_change(change)
        parts = v_D.split(self._bucket(len(v_D)))
        norms = torch.stack([t.norm() if self.norm == "l2" else t.abs().max() for t in parts])
        u_D = torch.rand(len(v_D), generator=keys("rounding")).to(v_D.device)
        ratio_D = v_D.abs() / self._spread(norms, len(v_D)).clamp(min=torch.finfo(v_D.dtype).tiny)
        levels_D = (self._most * ratio_D + u_D).floor().clamp(max=self._most)
        return {"norms": norms, "levels": pack_bits(self._most + v_D.sign() * levels_D, self.bits)}, {}

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        D = count_numbers(fed)
        codes_D = unpack_bits(tree["levels"], self.bits, D)
        if bool((codes_D > 2 * self._most).any()):
            raise DecodeError(f"it holds levels beyond {self._most}")
        v_D = self._spread(tree["norms"], D) * ((codes_D.float() - self._most) / self._most)
        return unflatten_change(v_D, w, fed)

    @property
    def _most(self) -> int:
        """The largest level s."""
        return 2 ** (self.bits - 1) - 1

    def _bucket(self, D: int) -> int:
        return min(self.bucket, D) or D

    def _spread(self, norms: Tensor, D: int) -> Tensor:
        """The norm of each number's bucket, [D]."""
        return norms.repeat_interleave(self._bucket(D))[:D]
