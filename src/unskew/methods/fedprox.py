"""FedProx (Li et al., MLSys 2020, arXiv 1812.06127).

Client: loss + (mu/2) ||w - w_t||^2
        w_t: the received weights; the norm is over the trained weights that clients send
Differs from the paper: nothing.
Defaults: mu is that of ReBaFL's and FedRDN's comparisons. The authors say that no value suits all settings,
and try 0.001 to 1.
"""

from dataclasses import dataclass
from typing import Annotated

from unskew.core import Batch, Client, Out, Part, Tensor, Weights
from unskew.formats.setting_ranges import NonNegative


@dataclass(frozen=True)
class FedProx(Part):
    """Pulls every client's weights towards the global model it received."""

    mu: Annotated[NonNegative, "strength of the pull towards the received model; 0 is FedAvg"] = 0.001
    name = "fedprox"
    alone = True
    family = "steps"
    against = ("labels",)
    use_when = (
        "Clients drift apart over many local steps on skewed data; the pull holds them near the global model."
    )

    @property
    def proximal(self) -> float:  # type: ignore[override]
        return self.mu

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        return self.mu / 2 * sum((w[n] - c.start[n].detach()).pow(2).sum() for n in c.fed.shared)
