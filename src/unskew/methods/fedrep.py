"""FedRep (Collins et al., ICML 2021, arXiv 2102.07078, algorithm 1): a common body under personal heads.

Client: the first round(head S) of its S local steps train its head p_k, under the received body
        the others train the body w under the new head;   Up: w
        each gets at least one step if S > 1; with S = 1 both are trained in that step
Server: w <- sum_k n_k/n w_k;   p_k is neither sent nor overwritten, and begins at the common start
Differs from the paper: clients are weighted by size, in the paper equally. The paper counts epochs, and those
of the head are additional: its runs train the head for 10 and the body for 1 or 5 epochs where FedAvg trains
for 1. Ours takes a share of the local steps (for the paper's: epochs=11, head=0.909), so that with equal
steps the body takes fewer. At the end its code fits all heads to the last body for 10 more epochs. A weight
that rests is not decayed and keeps its momentum; in older versions of torch the optimiser of its code moved
such weights. Statistics of normalisation follow every step.
Defaults: four epochs of the head to one of the body, as by default in the authors' program; its scripts have
ten to one and ten to five.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from unskew.core import Client, Fed, Part, Tensor
from unskew.methods.shared.weights import head_first


@dataclass(frozen=True)
class FedRep(Part):
    """Trains first the client's head, then the common body under it."""

    head: Annotated[
        float, Gt(0), Lt(1), "share of a round's local steps that train the head, before the body's"
    ] = 0.8
    name = "fedrep"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients differ in labels, and with a personal head each can learn one good common representation."
    )
    divides = True

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head()

    def keeps(self, name: str, fed: Fed) -> bool:
        return fed.net.of_head(name)

    def holds(self, c: Client) -> dict[str, Tensor]:
        return head_first(self.head, c)
