"""FedSAM (Qu et al., ICML 2022, arXiv 2206.02618; Caldarola, Caputo & Ciccone, ECCV 2022, arXiv 2203.11834).

Client, at every step:  g = grad L(w),   e = rho T^2 g / |T g|,   w <- w - lr grad L(w + e)
        T = 1 (SAM);   with `adaptive` (ASAM)  T = |w| + eta for tensors of two or more axes, 1 for
        others
|.| is over all trained weights. L includes the terms of every Part; weight decay is taken at w.
Differs from the paper: clients are weighted by size, by Qu et al. equally, and the server's step size is 1.
`fedasam` has the settings of Caldarola's runs; its code takes T = |w| + eta for the weights of normalisation,
too. Running statistics of batch normalisation are updated only by the pass at w (official codes: by both).
FL-Simulator clips gradients at norm 10.
Defaults: rho is that of Caldarola's runs on CIFAR-10, and FL-Simulator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Part, Tensor, Weights
from unskew.formats.arguments import With


@dataclass(frozen=True)
class FedSAM(Part):
    """Takes every step's gradient where the loss is highest nearby, so that training finds flat minima."""

    rho: Annotated[float, Ge(0), Le(1000), "how far the gradient is taken from the weights; 0 is FedAvg"] = (
        0.1
    )
    adaptive: Annotated[bool, "ASAM: measure that distance relative to the size of each weight"] = False
    eta: Annotated[float, Ge(0), Le(1000), With("adaptive"), "what is added to the size of each weight"] = 0.2
    name = "fedsam"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "fedasam": {"adaptive": True, "rho": 0.7, "eta": 0.2}
    }
    neutral = {"rho": 0.0}
    family = "steps"
    against = ("labels",)
    use_when = "Label skew drives local models into sharp minima; a step costs two gradients."
    climbs = 1

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        T = {
            n: t.abs() + self.eta if self.adaptive and t.dim() > 1 else torch.ones_like(t)
            for n, t in w.items()
        }
        step = scale_to_norm({n: T[n] * g_n for n, g_n in g.items()}, self.rho)
        return w | {n: w[n] + T[n] * e for n, e in step.items()}


def scale_to_norm(v: Weights, norm: float) -> dict[str, Tensor]:
    """The tensors, as one vector, scaled to this norm; zeros stay zeros."""
    length = torch.stack([t.pow(2).sum() for t in v.values()]).sum().sqrt()
    return {n: norm * t / length.clamp(min=1e-12) for n, t in v.items()}
