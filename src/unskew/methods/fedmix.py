"""FedMix (Yoon et al., ICLR 2021, arXiv 2107.00233): mixing with other clients' averages, to first order.

Once, before round 1, every client shuffles its data, divides them into groups of M and sends the means (x-,
y-) of each group.
Client, with one pair (x-, y-) for each batch and u = (1 - lam) x:
    L = (1 - lam) CE(f(u), y) + lam CE(f(u), y-) + lam mean_i <d/du_i (1 - lam) CE(f(u_i), y_i), x->
The last term is the derivative of the batch's mean loss along x-, so it uses batch statistics as training
does. It has no lower bound: with Adam at a constant rate it outgrew the other terms after 40 rounds on
Fashion-MNIST (84.6 % fell to 51 %), so reduce the rate during the run or use `naivemix`.
Differs from the paper: a client's last group may be smaller. `naivemix` mixes the inputs themselves.
Defaults: those of FedRDN's comparison.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from unskew.core import Batch, Client, Fed, Noise, Out, Part, Share, Tensor, Tree, Trip, Ups, Weights
from unskew.core.trees import row_at
from unskew.formats.setting_ranges import BelowOne, Count
from unskew.methods.shared.declarations import before_training


@dataclass(frozen=True)
class FedMix(Part):
    """Trains towards mixtures with averages of other clients' inputs, to first order."""

    lam: Annotated[BelowOne, "share of the averages in the mixture; 0 is FedAvg"] = 0.1
    group: Annotated[Count, "M, the number of samples in an average; 1 shares raw samples"] = 5
    name = "fedmix"
    family = "data"
    equal_samples = True
    against = ("labels",)
    use_when = "Clients are skewed, and averages of five or more inputs may be shared."
    tasks = ("classification",)
    needs = "labels that mix as shares of classes"
    clashes = {
        "naivemix": "both mix the same averages in",
        "flea": "its derivative is of a pass without FLea's mixture, which its other terms see",
    }

    def refuse(self, fed: Fed) -> str | None:
        return "it averages inputs, and whole numbers are among them" if fed.net.embeds else None

    @property
    def trips(self) -> tuple[Trip, ...]:
        if not self.lam:
            return ()
        return before_training(self.average, self.collect, self.averages)

    def averages(self, fed: Fed) -> dict[str, Share]:
        x = Share(
            (None, *fed.shape),
            rows=-(-int(fed.sizes.max()) // self.group),
            reads="each",
            what=f"means of {self.group} inputs",
            kind="inputs",
            samples=self.group,
        )
        y = replace(
            x, shape=(None, fed.classes), low=0.0, high=1.0, what="means of their labels", kind="labels"
        )
        return {"x": x, "y": y}

    def average(self, w: Weights, c: Client) -> Tree:
        b = c.sample(int(c.n), self.name, raw=True)
        x, y = (torch.stack([g.mean(0) for g in v.split(self.group)]) for v in (b.x, b.y))
        return {"x": x, "y": y.clamp(0, 1)}

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w, {leaf: torch.cat(tuple(ups[leaf])) for leaf in ("x", "y")} if len(ups) else s

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"x": torch.zeros(0, *fed.shape), "y": torch.zeros(0, fed.classes)}

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor]:
        return down["x"], down["y"].argmax(1)

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {"row": Noise("integers", (len(down["y"]),), per_sample=False)} if len(down["y"]) else {}

    def batch(self, b: Batch, c: Client) -> Batch:
        if "row" not in c.noise:
            return b
        x, y = row_at(c.down["x"], c.noise["row"]), row_at(c.down["y"], c.noise["row"])
        keep = 1 - self.lam
        return b.replace(x=keep * b.x, y=keep * b.y + self.lam * y, along=x.expand_as(b.x))

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        if "row" not in c.noise:
            return 0.0
        own = out.own.y - self.lam * row_at(c.down["y"], c.noise["row"])  # (1 - lam) y, as the term wants it
        return self.lam * c.slope(w, out.own.replace(y=own))
