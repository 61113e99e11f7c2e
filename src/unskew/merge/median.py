"""The median of clients' weights, coordinate by coordinate (Yin et al., ICML 2018, arXiv 1803.01498).

    w_i <- median_k w_ki     (of an even number: the mean of the middle two)
Clients have equal weights. If a minority of clients sends arbitrary values, the result still lies between
honest clients' values. Below three replies it is the mean, and the run prints a warning. Shares other than
weights (prototypes, control variates) are added up unchanged.
Differs from the paper: the paper takes the median of gradients, here it is of weights after local training.
"""

import math
from dataclasses import dataclass

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights


@dataclass(frozen=True)
class Median(Part):
    """Takes the median of clients' weights, coordinate by coordinate."""

    name = "median"
    family = "robust"
    use_when = "Any minority of the clients may send anything, and clients are of about one size."
    merges = True
    weights_read = "each"
    weighting = "equal"

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: trimmed_mean(ups, n, (len(ups) - 1) // 2) for n in ups.replies[0].weights}, s

    def caution(self, replies: int) -> str | None:
        return None if replies > 2 else f"with {replies} of the three replies it takes, it is the mean"


def trimmed_mean(ups: Ups, name: str, cut: int) -> Tensor:
    """The mean of one weight over clients, at each coordinate without the `cut` largest and the `cut`
    smallest values."""
    ordered = ups.stack(name).sort(0).values
    return ordered[cut : len(ups) - cut].mean(0)


def share_rounded_up(share: float, replies: int) -> int:
    """The share of the replies, rounded up to whole clients, with a tolerance for rounding errors."""
    return math.ceil(share * replies - 1e-9)
