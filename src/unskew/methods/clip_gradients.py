"""Gradient clipping (Pascanu et al., ICML 2013, arXiv 1211.5063): bounds the length of every local step.

Client, at every step:   g <- g min(1, norm / ||g||)     ||g||: over all trained weights together
A model that another Part keeps at the client, such as that of `ditto`, is clipped by its own norm.
Differs from the paper: nothing.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, Part, Weights
from unskew.formats.setting_ranges import Positive


@dataclass(frozen=True)
class ClipGradients(Part):
    """Bounds the norm of every local gradient."""

    norm: Annotated[Positive, "the largest norm of a gradient, over all weights together"] = 1.0
    name = "clip_gradients"
    family = "steps"
    each_model = True
    use_when = (
        "Local training diverges: recurrent models, high learning rates, outliers. It gives no privacy;"
        " use `dpsgd` for that."
    )
    neutral = {"norm": 1_000_000.0}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        size = torch.stack([t.pow(2).sum() for t in g.values()]).sum().sqrt()
        factor = (self.norm / size.clamp(min=1e-12)).clamp(max=1.0)
        return {n: factor * t for n, t in g.items()}
