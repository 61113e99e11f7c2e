"""FedAH (Zhou, He, Zhai et al. 2024, arXiv 2412.01295): FedRep with heads between global and local.

Client: its head starts at  p = v + (head of w_t - v) * W      v: the head that it trained last
        its body starts at that of w_t
        W is learned first, over its batches, from 1, and is kept:
        W <- clip(W - eta grad_p CE * (head of w_t - v), 0, 1)
        the first round(head S) of its S local steps then train the head, the others the body
        it sends both
        each gets at least one step if S > 1; with S = 1 both are trained in that step
Server: w = sum_k n_k / n w_k, heads included
Test:   a client's own score is that of w_t's body with p, for which W is learned again; other
        scores are the global model's
Differs from the paper: it counts epochs of head and body; ours takes a share of the local steps. The gradient
of W is that of the model in evaluation mode.
Defaults: the official program trains the head for one epoch and then the body for one.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from unskew.core import Client, Fed, Tensor
from unskew.methods.fedala import FedALA
from unskew.methods.shared.weights import head_first


@dataclass(frozen=True)
class FedAH(FedALA):
    """Starts a client's head between the global one and its last one, and trains it before the body."""

    first: Annotated[
        int, Ge(1), Le(1000), "passes that learn W in a client's second round, the first time"
    ] = 1
    head: Annotated[
        float, Gt(0), Lt(1), "share of a round's local steps that train the head, before the body's"
    ] = 0.5
    name = "fedah"
    family = "personalised"
    against = ("labels",)
    use_when = "As FedRep, if heads should also learn from each other."
    neutral = {}

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head() or super().refuse(fed)

    def holds(self, c: Client) -> dict[str, Tensor]:
        return head_first(self.head, c)
