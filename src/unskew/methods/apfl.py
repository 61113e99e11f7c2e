"""APFL (Deng, Kamani & Mahdavi 2020, arXiv 2003.13461, algorithm 1): a mixture of a global and a local model.

Client: w descends the loss as in FedAvg and is sent
        m = a v_k + (1 - a) w;   v_k and a descend CE(m; x, y) and stay with the client, so that
        dv = a grad CE(m),   da = <grad CE(m), v_k - w>
        a moves at the first step of a round (moves=step: at every step) and stays in [0, 1]
Test:   a client's own score is that of m with the received w; all others are the global model's
Differs from the paper: steps are those of the optimiser with its momentum and weight decay, also for a. The
paper's code lets v_k step after w, mixes outputs instead of weights, and adds 0.02 a to da; others move a at
every step (PFLlib) or in the first epoch of a round (FL-bench). The merge weighs clients by size, the paper
equally. v_k trains on inputs as they enter the model, without the changes of other Parts to logits, loss or
gradients. `adaptive=False` keeps a at its start, as the paper's code does by default.
Defaults: alpha is that of the authors' program and of FL-bench; the former keeps it fixed unless asked, the
latter adapts it, as here.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from unskew.core import Batch, Client, Fed, Out, OwnModel, Tensor, Tree, Weights
from unskew.formats.arguments import With
from unskew.formats.setting_ranges import Fraction


@dataclass(frozen=True)
class APFL(OwnModel):
    """Trains a local model so that its mixture with the global model fits the client."""

    alpha: Annotated[Fraction, "share of a client's own model in its mixture, to begin with"] = 0.5
    adaptive: Annotated[bool, "every client learns its share; False: it stays as it is"] = True
    moves: Annotated[
        Literal["round", "step"],
        With("adaptive"),
        "when a client's share moves: at a round's first step, or at every one",
    ] = "round"
    name = "apfl"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients differ in how much the global model helps them, and each learns its share from its data."
    )
    neutral = {"alpha": 0.5}

    def weights(self, fed: Fed) -> Weights:
        return super().weights(fed) | {"alpha": torch.tensor(self.alpha)}

    def freezes(self, name: str, fed: Fed) -> bool:
        return name == "apfl.alpha" and not self.adaptive

    def holds(self, c: Client) -> dict[str, Tensor]:
        return {"apfl.alpha": c.step > 0} if self.adaptive and self.moves == "round" else {}

    def begin(self, w: Weights, c: Client) -> Tree:
        return {"lr": torch.full_like(c.n, c.lr)} if self.adaptive else {}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        return out.own.mean(c.fed.task.loss(c.run_training(self.mixed(w, c), out.own.x), out.own.y))

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        """Bounds the slope of a so that a plain step of SGD ends in [0, 1], even if momentum has carried a
        out of this range; the slope is 0 where a does not move."""
        if not self.adaptive:
            return g
        a, slope = w["apfl.alpha"], g["apfl.alpha"]
        if self.moves == "round":
            slope = torch.where(c.step > 0, 0.0, slope)
        # the rate may have fallen to 0, and 0 / 0 is NaN
        lr = c.round["lr"].clamp(min=torch.finfo(a.dtype).tiny)
        return g | {"apfl.alpha": torch.minimum(torch.maximum(slope, (a - 1) / lr), a / lr)}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.mixed(w, c)

    def mixed(self, w: Weights, c: Client) -> Weights:
        """The mixture's weights; a keeps its gradient outside [0, 1]."""
        v, a = self.own(w), w["apfl.alpha"]
        a = a + (a.clamp(0, 1) - a).detach()
        return v | {n: a * v[n] + (1 - a) * w[n].detach() for n in c.net.trainable}
