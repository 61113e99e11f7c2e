"""FedPer (Arivazhagan et al. 2019, arXiv 1912.00818): averages the lower layers; the last stay with clients.

Client: trains the base w and its personalisation layers p_k together;  Up: w
Server: w <- sum_k n_k/n w_k;   p_k is neither sent nor overwritten, and begins at the common start
Differs from the paper: there every client draws the layers that it keeps at random. It keeps whole blocks of
a ResNet; here a block is a direct child of the model, and its running statistics stay with it. A pull such
as that of `fedprox` is over w alone: p_k was not received.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from unskew.core import Fed, Part
from unskew.methods.shared.weights import block_refusal, in_last_blocks


@dataclass(frozen=True)
class FedPer(Part):
    """Keeps the head, and optionally blocks below it, on the client."""

    blocks: Annotated[
        int, Ge(1), Le(1000), "how many of the model's last blocks stay with the clients; 1: the head"
    ] = 1
    name = "fedper"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients have different labels, or label similar samples differently, and each wants its own model."
    )
    divides = True

    def refuse(self, fed: Fed) -> str | None:
        return block_refusal(self.blocks, fed)

    def keeps(self, name: str, fed: Fed) -> bool:
        return in_last_blocks(name, self.blocks, fed)
