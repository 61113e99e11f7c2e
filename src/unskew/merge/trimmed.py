"""The trimmed mean of clients' weights, coordinate by coordinate (Yin et al., ICML 2018, arXiv 1803.01498).

    w_i <- mean_k w_ki without the c largest and the c smallest,    c: share K rounded up, below K / 2
Clients have equal weights. Below three replies none can be left out, and the run prints a warning. Shares
other than weights (prototypes, control variates) are added up unchanged.
Differs from the paper: the paper trims gradients, here weights after local training are trimmed.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from unskew.core import Fed, Part, Tree, Ups, Weights
from unskew.merge.median import share_rounded_up, trimmed_mean


@dataclass(frozen=True)
class TrimmedMean(Part):
    """Leaves the largest and smallest values out of the mean, coordinate by coordinate."""

    share: Annotated[float, Ge(0), Lt(0.5), "share of the clients left out at each end"] = 0.1
    name = "trimmed_mean"
    family = "robust"
    use_when = "A few clients may send anything, and all others should still be averaged."
    merges = True
    weights_read = "each"
    weighting = "equal"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: trimmed_mean(ups, n, self.cut(len(ups))) for n in ups.replies[0].weights}, s

    def cut(self, replies: int) -> int:
        """c for this number of replies."""
        return min(share_rounded_up(self.share, replies), (replies - 1) // 2)

    def caution(self, replies: int) -> str | None:
        if not self.share or self.cut(replies):
            return None
        return f"with {replies} of the three replies it takes, it is the mean"
