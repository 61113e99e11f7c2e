"""FedBN (Li et al., ICLR 2021, arXiv 2102.07623).

Every batch-normalisation weight and statistic stays on the client: neither sent nor overwritten.
Differs from the paper: clients are weighted by size; `weighted=False` gives the official 1/K.
"""

from dataclasses import dataclass
from typing import Literal

from unskew.core import Fed, Part


@dataclass(frozen=True)
class FedBN(Part):
    """weighted: merge the other weights by client size."""

    weighted: bool = True
    name = "fedbn"

    @property
    def weighting(self) -> Literal["size", "equal"] | None:  # type: ignore[override]
        return None if self.weighted else "equal"

    def keeps(self, name: str, fed: Fed) -> bool:
        return name in fed.net.norms
