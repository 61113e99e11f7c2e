"""APFL (Deng, Kamani & Mahdavi 2020, arXiv 2003.13461, algorithm 1): a mixture of the global and an own model.

Client: w descends the loss as ever, and is sent;   m = a v_k + (1 - a) w,   v_k and a descend  CE(m; x, y)
        so that  dv = a grad CE(m),   da = <grad CE(m), v_k - w>;   a lies in [0, 1], v_k and a stay with the client
Test:   a client's own score is that of m, with the received w; all others are the global model's.
Differs from the paper: both models take their steps at once, with the optimiser's momentum and weight decay, in a, too; its
code moves a once a round, ours at every step. `adaptive=False` holds a where it begins. The merge weighs clients by
size, the paper's equally. v_k trains on inputs as they enter the model, without what other Parts do to logits or loss.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Out, OwnModel, Tensor, Weights


@dataclass(frozen=True)
class APFL(OwnModel):
    """Trains a model of the client's own so that its mixture with the global one fits the client."""

    alpha: Annotated[float, Ge(0), Le(1), "share of a client's own model in its mixture, to begin with"] = 0.5
    adaptive: Annotated[bool, "every client learns its share; False: it stays as it is"] = True
    name = "apfl"
    use_when = "Clients differ in how much of the global model is of use to them, and each is to find out by itself."
    neutral = {"alpha": 0.5}

    def weights(self, fed: Fed) -> Weights:
        return super().weights(fed) | {"alpha": torch.tensor(self.alpha)}

    def freezes(self, name: str, fed: Fed) -> bool:
        return name == "apfl.alpha" and not self.adaptive

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        return out.own.mean(c.fed.task.loss(c.run_training(self.mixed(w, c), out.own.x), out.own.y))

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        if not self.adaptive:
            return g
        a, slope = w["apfl.alpha"], g["apfl.alpha"]
        outwards = ((a >= 1) & (slope < 0)) | ((a <= 0) & (slope > 0))
        return g | {"apfl.alpha": torch.where(outwards, 0.0, slope)}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.mixed(w, c)

    def mixed(self, w: Weights, c: Client) -> Weights:
        """The mixture's weights; a has its gradient also where a step has carried it out of [0, 1]."""
        v, a = self.own(w), w["apfl.alpha"]
        a = a + (a.clamp(0, 1) - a).detach()
        return v | {n: a * v[n] + (1 - a) * w[n].detach() for n in self.learns(c)}
