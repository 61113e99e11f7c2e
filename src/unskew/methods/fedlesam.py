"""FedLESAM (Fan et al., ICML 2024, arXiv 2405.18890): SAM's ascent estimated from the global model's move.

Client: in a round   e = rho (w_old - w_t) / |w_old - w_t|
        w_old: the model that it received when it last took part;   e = 0 the first time
        at a step    w <- w - lr grad L(w + e)
|.| is over all shared weights. A step costs one gradient, as in FedAvg; two together with a Part that trains
weights of the client's own, which take theirs at w.
Differs from the paper: clients are weighted by size, in the paper equally. Official code takes the last
round's step of the server for all clients (`since="round"`, which broadcasts one more model) and clips
gradients at norm 10. It indexes that step, one long vector, by the number of a tensor, so that each tensor is
moved by a single number; ours moves every weight by its own, as in the paper.
Defaults: rho is that of the official program; its example, a variant with SCAFFOLD, has 0.5, and its authors
say that it may need tuning.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Tree, Weights
from unskew.methods.fedsam import scale_to_norm


@dataclass(frozen=True)
class FedLESAM(Part):
    """Takes every step's gradient at weights moved against the last direction of the global model."""

    rho: Annotated[float, Ge(0), Le(1000), "how far the gradient is taken from the weights; 0 is FedAvg"] = (
        0.1
    )
    since: Annotated[
        Literal["client", "round"],
        "measure the global model's move since the client's last round, or since the last one",
    ] = "client"
    name = "fedlesam"
    neutral = {"rho": 0.0}
    family = "steps"
    against = ("labels",)
    use_when = (
        "As FedSAM, at the cost of FedAvg, if flatness of the global loss matters more than that of a"
        " client's."
    )

    def refuse(self, fed: Fed) -> str | None:
        return None if fed.shared else "it follows how the global model moved, and clients keep every weight"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        if self.since == "client":
            return {}
        return {which: {n: w[n].clone() for n in fed.shared} for which in ("now", "old")}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"old": {n: w[n].clone() for n in fed.shared}} if self.since == "client" else {}

    def begin(self, w: Weights, c: Client) -> Tree:
        old = (c.mine if self.since == "client" else c.down)["old"]
        back = {n: old[n] - w[n] for n in c.fed.shared}  # a fixed order, because a stored tree is sorted
        return {"e": scale_to_norm(back, self.rho)}

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        return w | {n: w[n] + e for n, e in c.round["e"].items()}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"old": {n: c.start[n] for n in c.mine["old"]}} if self.since == "client" else {}

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        return w, (
            {
                "old": s["now"],
                "now": {n: w[n].clone() for n in s["now"]},
            }
            if self.since == "round"
            else s
        )
