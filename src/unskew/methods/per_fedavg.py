"""Per-FedAvg (Fallah, Mokhtari & Ozdaglar, NeurIPS 2020, arXiv 2002.07948): one step personalises the model.

Client, at every step, with the parts D, D', D'' of the batch:
    u = w - alpha grad f(w; D),   v = grad f(u; D')
    fo:  w <- w - lr v                         the batch in two parts
    hf:  w <- w - lr (v - alpha d)             the batch in three parts
         d = (grad f(w + delta v; D'') - grad f(w - delta v; D'')) / (2 delta)
Test:   a client's own score is that of w - alpha grad f(w; a batch of its samples), after `steps`
        such steps; the global score is that of w
This is the paper's algorithm 1.
Differs from the paper: clients are weighted by size, in the paper equally. D, D' and D'' are parts of one
batch, not batches; a batch with fewer samples than parts replaces the parts for which it has no sample.
Normalisation sees the whole batch, and its statistics follow the pass at w. The exact Hessian is left out.
Public code (the paper has none) takes whole batches for the parts, so that an epoch has half or a third of
the steps, and FL-bench adapts by an epoch of fine-tuning.
Defaults: alpha is that of public code (KarhouTam's Per-FedAvg), form and delta are those of FL-bench.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Part, Weights
from unskew.formats.setting_ranges import Rate
from unskew.methods.shared.weights import test_gradients


@dataclass(frozen=True)
class PerFedAvg(Part):
    """Trains the global model so that one gradient step at a client makes it a good model for that client."""

    alpha: Annotated[
        float, Ge(0), Le(1000), "step size with which a client adapts the model; 0: it does not"
    ] = 0.01
    form: Annotated[Literal["fo", "hf"], "fo: first order, two gradients a step; hf: Hessian-free, four"] = (
        "fo"
    )
    delta: Annotated[Rate, "how far from the weights hf takes its differences"] = 0.001
    steps: Annotated[
        int, Ge(0), Le(10_000), "steps that adapt the model before a client's own score is taken"
    ] = 1
    name = "per_fedavg"
    family = "personalised"
    equal_samples = True
    against = ("labels",)
    use_when = (
        "Clients, or new clients, are served by a model that one step on a few of their samples has adapted."
    )
    personal = True

    @property
    def climbs(self) -> int:  # type: ignore[override]
        return 1 if self.form == "fo" else 3

    def batch(self, b: Batch, c: Client) -> Batch:
        parts, turn = (2, len(c.seen)) if self.form == "fo" else (3, min(len(c.seen), 2))
        place_B = torch.arange(len(b.weight), device=b.weight.device)
        mine_B = torch.where((parts * place_B / b.weight.sum()).floor() == turn, b.weight, 0.0)
        return b.replace(weight=torch.where(mine_B.sum() > 0, mine_B, b.weight))

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        move = {1: -self.alpha, 2: self.delta, 3: -self.delta}[len(c.seen)]
        along = c.seen["0" if len(c.seen) == 1 else "1"]
        return w | {n: w[n] + move * t for n, t in along.items()}

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        if self.form == "fo":
            return g
        d = {n: (c.seen["2"][n] - t) / (2 * self.delta) for n, t in g.items()}
        return {n: v - self.alpha * d[n] for n, v in c.seen["1"].items()}

    def personalise(self, w: Weights, c: Client) -> Weights:
        for step in range(self.steps):
            g = test_gradients(w, c.sample(c.fed.batch, f"{self.name}/{c.t}/{step}"), c)
            w = w | {n: w[n] - self.alpha * t for n, t in g.items()}
        return w
