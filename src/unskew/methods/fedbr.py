"""FedBR (Guo, Tang & Lin, ICML 2023, arXiv 2205.13462): local models agree on averaged inputs.

Once, before round 1, clients share `pseudo` averages, each of a batch of their inputs, without labels.
Client, with a batch u of these averages:  e1 = P(phi(u)),  e2 = P(phi_t(u)),  e3 = P(phi(x))
    L_con = mean -log[ e^(2 cos(e1, e2)) / (e^(2 cos(e1, e2)) + e^(2 cos(e1, e3))) ]
    the model descends  CE(x, y) + mu L_con + lam CE(z(u), 1/C);   the projection P ascends L_con
    phi_t: the received body, a constant;   P stays with the client from round to round
Differs from the paper: the model and P take their steps at the same time (paper: P first). u and, in L_con, x
pass batch normalisation in evaluation mode. Its second kind of pseudo-data, averages with one more sample of
the client, is left out.
Defaults: those of the official program; the widths of P are those of FLea's code.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le, MinLen

from unskew.core import (
    Batch,
    Client,
    Fed,
    Noise,
    Out,
    Part,
    Share,
    Tensor,
    Tree,
    Trip,
    Ups,
    Weights,
    key,
    under,
)
from unskew.formats.setting_ranges import NonNegative, Rate
from unskew.methods.moon import contrast
from unskew.methods.shared.declarations import before_training, uniform


@dataclass(frozen=True)
class FedBR(Part):
    """Makes local models agree with the received one on averages of inputs from all clients."""

    mu: Annotated[NonNegative, "weight of the contrastive loss"] = 0.5
    lam: Annotated[
        NonNegative, "weight of the cross-entropy of pseudo-data with the uniform distribution"
    ] = 1.0
    pseudo: Annotated[int, Ge(1), Le(100_000), "number of averages that all clients together share"] = 32
    tau: Annotated[Rate, "factor on both cosines"] = 2.0
    widths: Annotated[
        tuple[Annotated[int, Ge(1), Le(16_384)], ...], MinLen(1), "units of each layer of the projection P"
    ] = (
        256,
        256,
        512,
    )
    name = "fedbr"
    equal_samples = True
    family = "representation"
    against = ("labels",)
    use_when = "Small, skewed clients may share averages of inputs without labels."
    tasks = ("classification",)
    needs = "labels that are classes"

    def refuse(self, fed: Fed) -> str | None:
        return "it averages inputs, and whole numbers are among them" if fed.net.embeds else None

    @property
    def trips(self) -> tuple[Trip, ...]:
        return before_training(self.average, self.collect, self.averages)

    def averages(self, fed: Fed) -> dict[str, Share]:
        each = self._each(fed)
        what = f"averages of {fed.batch} inputs, without labels"
        return {"x": Share((each, *fed.shape), reads="each", what=what, kind="inputs", samples=fed.batch)}

    def average(self, w: Weights, c: Client) -> Tree:
        b = c.sample(self._each(c.fed) * c.fed.batch, self.name, replace=True, raw=True)
        return {"x": b.x.unflatten(0, (-1, c.fed.batch)).mean(1)}

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w, {"x": ups["x"].transpose(0, 1).flatten(0, 1)[: self.pseudo]} if len(ups) else s

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"x": torch.zeros(0, *fed.shape)}

    def weights(self, fed: Fed) -> Weights:
        generator, width = key(fed.seed, self.name, "projection"), fed.features
        layers: Weights = {}
        for i, out in enumerate(self.widths):
            layers[f"weight{i}"] = uniform(out, width, generator)
            layers[f"bias{i}"] = (2 * torch.rand(out, generator=generator) - 1) * width**-0.5
            width = out
        return layers

    def keeps(self, name: str, fed: Fed) -> bool:
        return name.startswith(f"{self.name}.")

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {"row": Noise("cycle", (len(down["x"]),))} if len(down["x"]) and (self.mu or self.lam) else {}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        if "row" not in c.noise:
            return 0.0
        u = c.ready(c.down["x"][c.noise["row"]])
        h_BD, P = c.features(w, u), under(w, self.name)
        e1, e2 = project(P, h_BD), project(P, c.features(c.start, u).detach())
        con = b.mean(contrast(e1, e2, project(P, c.features(w, b.x)), 1 / self.tau))
        flat = b.mean(-c.head(w, h_BD).log_softmax(-1).mean(-1))
        return self.mu * con + self.lam * flat

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        """Reverses the gradient of P, which ascends the contrast that the loss contains `mu` times."""
        if not self.mu:
            return g
        return {n: -t / self.mu if n.startswith(f"{self.name}.") else t for n, t in g.items()}

    def _each(self, fed: Fed) -> int:
        return -(-self.pseudo // max(1, int((fed.sizes > 0).sum())))


def project(P: Weights, h_BD: Tensor) -> Tensor:
    """The projection of features by linear layers with ReLU between them, [B, last width]."""
    last = len(P) // 2 - 1
    for i in range(last + 1):
        h_BD = F.linear(h_BD, P[f"weight{i}"], P[f"bias{i}"])
        h_BD = h_BD if i == last else h_BD.relu()
    return h_BD
