"""NaiveMix (Yoon et al., ICLR 2021, arXiv 2107.00233): inputs are mixed with other clients' averages.

It is FedMix with the input (1 - lam) x + lam x-, the label mixed in the same way, and no derivative.
`per_batch=True` is what FLea's comparison calls FedMix (groups of 10, a = 2): it draws lam ~ Beta(a, a) for
each batch and mixes another average into every sample, as FLea's public code does; a pass over the averages
uses each once.
Differs from the paper: a client's last group may be smaller (in FLea's code such a group is left out).
Defaults: lam is that of FedRDN's comparison of FedMix, a that of FLea's.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Noise, Out, Tree, Weights
from unskew.core.trees import row_at
from unskew.formats.arguments import With
from unskew.formats.setting_ranges import BelowOne
from unskew.methods.fedmix import FedMix


@dataclass(frozen=True)
class NaiveMix(FedMix):
    """Trains on mixtures of a client's inputs with averages of other clients' inputs."""

    lam: Annotated[
        BelowOne, With("per_batch", False), "share of the averages in the mixture; 0 is FedAvg"
    ] = 0.1
    per_batch: Annotated[
        bool,
        "draw the strength of the mixture from Beta(a, a) for every batch, instead of `lam`, and another"
        " average for every sample",
    ] = False
    a: Annotated[
        float, Ge(0.01), Le(10_000), With("per_batch"), "parameter of Beta(a, a), with `per_batch`"
    ] = 2.0
    name = "naivemix"
    family = "data"
    against = ("labels",)
    use_when = "As `fedmix`, if a second derivative costs too much."
    tasks = ("classification",)
    needs = "labels that mix as shares of classes"
    clashes = {"fedmix": "both mix the same averages in"}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        drawn = super().noise(fed, down)
        if drawn and self.per_batch:
            return {
                "row": Noise("cycle", (len(down["y"]),)),
                "lam": Noise("beta", (self.a, self.a), per_sample=False),
            }
        return drawn

    def batch(self, b: Batch, c: Client) -> Batch:
        if "row" not in c.noise:
            return b
        lam = c.noise["lam"] if self.per_batch else self.lam
        take = torch.Tensor.__getitem__ if self.per_batch else row_at
        x, y = (take(c.down[what], c.noise["row"]) for what in ("x", "y"))
        return b.replace(x=(1 - lam) * b.x + lam * x, y=(1 - lam) * b.y + lam * y)

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> float:
        return 0.0
