"""FedBN (Li et al., ICLR 2021, arXiv 2102.07623): batch normalisation stays with the clients.

Weights and statistics of batch normalisation are neither sent nor overwritten. A model without batch
normalisation is refused, because the method would then be FedAvg.
Differs from the paper: clients are weighted by size; `weighted=False` gives the official 1/K.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from unskew.core import Fed, Part
from unskew.core.modules import batch_norms


@dataclass(frozen=True)
class FedBN(Part):
    """Keeps everything that belongs to batch normalisation on the client."""

    weighted: Annotated[
        bool, "weigh clients by their samples in the merge of all other weights; False: equally"
    ] = True
    name = "fedbn"
    family = "personalised"
    against = ("features",)
    use_when = (
        "The sites' inputs look different (scanners, cameras) and each site wants its own model; the"
        " model has batch normalisation."
    )

    @property
    def weighting(self) -> Literal["size", "equal"] | None:  # type: ignore[override]
        return None if self.weighted else "equal"

    def refuse(self, fed: Fed) -> str | None:
        if fed.net.norms:
            return None
        if any(True for _ in batch_norms(fed.net.module)):
            return (
                "the model's batch normalisation is frozen (requires_grad=False), so that clients have none"
                " of their own; unfreeze it, or use fedavg"
            )
        return (
            "the model has no batch normalisation to keep at the clients, so that it would be FedAvg; use"
            " another model, or fedavg"
        )

    def keeps(self, name: str, fed: Fed) -> bool:
        return name in fed.net.norms
