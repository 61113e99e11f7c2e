"""FedALA (Zhang et al., AAAI 2023, arXiv 2212.01197, algorithm 1): clients learn how much to take over.

Client: its last blocks start at  th = v + (w_t - v) * W      v: the weights that it trained last
        its lower blocks start at w_t
        W is learned first, over its batches, from 1, and is kept:
        W <- clip(W - eta grad_th CE * (w_t - v), 0, 1)
        then it trains and sends all weights;   a new client has v = w_t and therefore th = w_t
Test:   a client's own score is that of th, for which W is learned again from the received w_t;
        other scores are the global model's
Differs from the paper: W is learned on all of a client's samples, in their order; the paper takes a random 80
%. The first time that a client has a v of its own, in its second round, it takes `first` passes over them,
where the paper continues until the loss settles, and later one pass, as the paper does. Clients are trained
side by side, so where some miss rounds all compute `first` passes in every round, and only those take them
that need them. The gradient is that of the model in evaluation mode.
Defaults: eta and blocks are those of the authors' script.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Remembered, Tensor, Tree, Weights
from unskew.formats.setting_ranges import NonNegative
from unskew.methods.shared.weights import block_refusal, in_last_blocks


@dataclass(frozen=True)
class FedALA(Remembered):
    """Starts a client's last blocks between the global model and its own, as its data decide."""

    eta: Annotated[NonNegative, "step size with which W is learned; 0: the global model as it is"] = 1.0
    blocks: Annotated[int, Ge(1), Le(1000), "how many of the model's last blocks are mixed; 1: the head"] = 1
    first: Annotated[
        int, Ge(1), Le(1000), "passes that learn W in a client's second round, the first time"
    ] = 10
    name = "fedala"
    family = "personalised"
    equal_samples = True
    against = ("labels",)
    use_when = (
        "Clients want to start from the useful parts of the global model; sends nothing more than FedAvg."
    )
    neutral = {"eta": 0.0}

    def refuse(self, fed: Fed) -> str | None:
        return block_refusal(self.blocks, fed)

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        W = {n: torch.ones_like(w[n]) for n in self.mixed(fed)}
        return super().client_init(w, fed) | {"W": W, "rounds": torch.zeros(())}

    def begin(self, w: Weights, c: Client) -> Tree:
        return {"W": self.learned(w, c, c.t)}

    def starts(self, w: Weights, c: Client) -> Weights:
        return w | self.between(w, c, c.round["W"])

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, super().finish(w, c)[1] | {"W": c.round["W"], "rounds": c.mine["rounds"] + 1}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return w | self.between(w, c, self.learned(w, c, c.t + 1)) if c.mine else w

    def mixed(self, fed: Fed) -> list[str]:
        """Names of the weights that start between the global model's and the client's."""
        return [n for n in fed.net.trainable if in_last_blocks(n, self.blocks, fed)]

    def between(self, w: Weights, c: Client, W: Weights) -> Weights:
        """The starting weights th, by name."""
        v = c.mine["w"]
        return {n: v[n] + (w[n] - v[n]) * share for n, share in W.items()}

    def learned(self, w: Weights, c: Client, t: int) -> Weights:
        """W in round t, from the client's private tree."""
        share, v = c.mine["W"], c.mine["w"]
        everyone, first_time = c.fed.sampled == 1, c.mine["rounds"] == 1
        for i in range(self.first if t == 2 or not everyone else 1):
            before = share
            for b in batches(c):

                def loss(th: Weights, b: Batch = b) -> Tensor:
                    return b.mean(c.fed.task.loss(c.run(w | th, b.x), b.y))

                g = c.gradients(loss, self.between(w, c, share))
                share = {n: (t - self.eta * g[n] * (w[n] - v[n])).clamp(0, 1) for n, t in share.items()}
            if i:
                share = {n: torch.where(first_time, t, before[n]) for n, t in share.items()}
        return share


def batches(c: Client) -> Iterator[Batch]:
    """The client's samples in their order, in batches of the training size; equal in every hook."""
    whole = list(c.batches())
    x, y, weight = (torch.cat([getattr(b, name) for b in whole]) for name in ("x", "y", "weight"))
    for first in range(0, len(weight), c.fed.batch):
        rows = slice(first, first + c.fed.batch)
        yield Batch(x[rows], y[rows], weight[rows])
