"""FedLC (Zhang et al., ICML 2022, arXiv 2209.00189): logits are calibrated by the client's label counts.

Client: CE(z - tau n_c^(-1/4), y)    n_c: its samples of class c; a class it lacks is masked out
Test:   plain logits
Differs from the paper: its formula leaves the true class out of the denominator, which is unbounded below and
collapses; every implementation uses the full softmax. The mask is exact: codes add 1e-6 or 1e-9 to the
counts.
Defaults: tau is that of ReBaFL's public code, of FL-bench and of PFLlib.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Batch, Client, Part, Tensor
from unskew.formats.setting_ranges import NonNegative
from unskew.methods.bsm import conflicts_of_prior


@dataclass(frozen=True)
class FedLC(Part):
    """Lowers the logit of a class the more, the fewer samples of it the client has."""

    tau: Annotated[
        NonNegative, "strength of the calibration; 0 only masks the classes that a client lacks"
    ] = 1.0
    name = "fedlc"
    family = "classifier"
    against = ("labels",)
    use_when = "Clients lack classes or hold few samples of some, and only the loss may change."
    tasks = ("classification",)
    plain_loss = True
    needs = "class counts"
    clashes = conflicts_of_prior(name)

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        shift_C = self.tau * c.counts.clamp(min=1).pow(-0.25)
        return (z - shift_C).masked_fill(c.counts == 0, -torch.inf)
