"""The trimmed mean of clients' weights, coordinate by coordinate (Yin et al., ICML 2018, arXiv 1803.01498).

    w_i <- mean_k w_ki, without the floor(share K) largest and the floor(share K) smallest
Every client counts the same.
Differs from the paper: it trims gradients, ours weights after local training.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from unskew.core import Fed, Part, Tree, Ups, Weights
from unskew.merge.median import trimmed


@dataclass(frozen=True)
class TrimmedMean(Part):
    """Leaves the largest and smallest values out of the mean, coordinate by coordinate."""

    share: Annotated[float, Ge(0), Lt(0.5), "share of the clients left out at each end"] = 0.1
    name = "trimmed_mean"
    use_when = "A few clients may send anything, and all others should still be averaged."
    merges = True
    weights_read = "each"
    weighting = "equal"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        cut = int(self.share * len(ups))
        return w | {n: trimmed(ups, n, cut) for n in ups.replies[0].weights}, s
