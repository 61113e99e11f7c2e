"""FedExP (Jhunjhunwala, Wang & Joshi, ICLR 2023, arXiv 2301.09604): extrapolated server steps.

Client: sends s_k = ||w_t - w_k||^2    over trained weights
Server: d = w_t - w-      w-: the mean of the M clients
        eta = max(1, sum_k s_k / (2 M (||d||^2 + eps))),   w_{t+1} = w_t - eta d
        after the last round T:  (w_T + w_{T-1}) / 2, which oscillates less
Statistics of batch normalisation take the plain mean.
Differs from the paper: the average of two models is taken once, at the end; the paper plots that of every
round. The official code weighs clients by size (as with `weighted=True`), has M eps instead of eps, reduces
eps with the learning rate and clips gradients (`clip_gradients(norm=10)`).
Defaults: eps is that of the authors' program for CIFAR-10, CIFAR-100 and CINIC-10; for EMNIST it has 0.1.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from unskew.core import Client, Fed, Part, Share, Tree, Ups, Weights
from unskew.errors import UsageError
from unskew.formats.setting_ranges import NonNegative
from unskew.merge.mean import weighted_mean


@dataclass(frozen=True)
class FedExP(Part):
    """Lengthens the server's step the more, the more the clients' changes differ."""

    eps: Annotated[NonNegative, "added to ||d||^2; large values make the step 1, as in FedAvg"] = 0.001
    average: Annotated[bool, "end with the average of the last two models"] = True
    weighted: Annotated[bool, "weigh clients by their samples; False: equally, as in the paper"] = False
    name = "fedexp"
    family = "merge"
    against = ("labels",)
    use_when = (
        "Clients' changes point in different directions, so that their mean is too short a step; nothing to"
        " tune."
    )
    merges = True

    @property
    def weighting(self) -> Literal["size", "equal"]:  # type: ignore[override]
        return "size" if self.weighted else "equal"

    def shares(self, fed: Fed) -> dict[str, Share]:
        what = "squared norm of the change" + ", times the samples" * self.weighted
        return {"square": Share((), low=0, what=what, kind="statistics", samples="client")}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        square = sum((c.start[n] - w[n]).square().sum() for n in c.fed.shared)
        return {"square": square * c.n if self.weighted else square}, {}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if self.weighted and (ups.weighting == "equal" or ups.cap < 1):
            other = "weighting: equal" if ups.weighting == "equal" else f"cap: {ups.cap:g}"
            text = (
                f"'fedexp(weighted=True)' adds up what clients send by their samples, and {other} gives them"
                " other weights"
            )
            raise UsageError("E108", f"{text}; leave out weighted=True, or {other}.")
        mean, M = weighted_mean(w, ups), float(ups.sizes.sum()) if self.weighted else len(ups)
        d = {n: w[n] - mean[n] for n in fed.shared}
        squared = sum(float(d_n.double().square().sum()) for d_n in d.values()) + self.eps
        eta = max(1.0, float(ups["square"].double().sum()) / (2 * M * squared)) if squared else 1.0
        if self.average and ups.last:
            eta = eta / 2  # (w_T + w_{T-1}) / 2, and w_{T-1} is w
        return mean | {n: w[n] - eta * d_n for n, d_n in d.items()}, s
