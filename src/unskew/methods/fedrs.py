"""FedRS (Li & Zhan, KDD 2021, doi 10.1145/3447548.3467254): scales down the logits of absent classes.

Client: CE(s z, y)    s_c = 1 for a class the client has, alpha for one it lacks
        soft form:    s_c = (1 - alpha) n_c / max_j n_j + alpha
Test:   plain logits
A negative logit gains probability when it is scaled by alpha.
Differs from the paper: the head may have a bias, which is scaled too. Its code uses the soft form, clips
gradients, and applies its scale more than once.
Defaults: alpha is that of ReBaFL's comparison, and the middle one of the three that the authors try.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Batch, Client, Part, Tensor
from unskew.formats.setting_ranges import Fraction
from unskew.methods.bsm import MIXTURES

MASKS = ("bsm", "fedetf", "fedlc", "fedrod", "fedvls")
_MASKED = (
    "the other masks the classes a client lacks, the only ones that this would scale; fedrs(soft=True) scales"
    " more"
)


@dataclass(frozen=True)
class FedRS(Part):
    """Scales the logits of classes that a client lacks."""

    alpha: Annotated[Fraction, "factor on the logit of a class that the client lacks; 1 is FedAvg"] = 0.5
    soft: Annotated[bool, "scale rare classes down too, in proportion to the client's samples of them"] = (
        False
    )
    name = "fedrs"
    family = "classifier"
    against = ("labels",)
    use_when = "Clients lack classes; this is the mildest of the corrections of logits."
    tasks = ("classification",)
    plain_loss = True
    needs = "class counts"

    @property
    def clashes(self) -> Mapping[str, str]:  # type: ignore[override]
        """Parts that mix labels; and, unless rare classes are scaled too, Parts that mask all the classes it
        would scale."""
        others = dict.fromkeys(
            MIXTURES, "it scales down the classes a client lacks, which the other brings into its batches"
        )
        return others if self.soft else others | dict.fromkeys(MASKS, _MASKED)

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        have_C = c.counts / c.counts.max().clamp(min=1) if self.soft else (c.counts > 0).to(z.dtype)
        scale_C = (1 - self.alpha) * have_C + self.alpha
        return torch.where(
            z == -torch.inf, z, z * scale_C
        )  # logits masked by another Part stay masked, also for alpha = 0
