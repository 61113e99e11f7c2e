"""Elastic aggregation (Chen et al., CVPR 2023): short server steps in the most sensitive weights.

Client: before training, for each batch of its samples and each weight:
        Om_k <- mu Om_k + (1 - mu) |grad_w mean |z|^2|
        z: the model's outputs in evaluation mode, without labels
        Om_k begins at 0 and continues from round to round
Server: Om = sum_k n_k / n Om_k,   zeta = 1 + tau - Om / max_k Om_k
        w_{t+1} = w_t + zeta (w- - w_t)      w-: the weighted mean
        with over=weights the largest Om of all weights replaces max_k Om_k;   0 / 0 is 0
Statistics of normalisation take the plain mean.
Differs from the paper: Om_k is computed on all training samples of a client; the paper sets 30 % apart for
it. The denominator of Om follows public code (FL-bench), in which Om is one number for each tensor, from the
gradient of the labels' loss.
Defaults: those of FL-bench.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from unskew.core import Batch, Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import BelowOne, Fraction
from unskew.merge.mean import weighted_mean
from unskew.methods.fedala import batches


@dataclass(frozen=True)
class Elastic(Part):
    """Shortens the server's step in sensitive weights and lengthens it in others."""

    tau: Annotated[
        Fraction, "the step in the most sensitive weights, in that of FedAvg; in others up to 1 + tau"
    ] = 0.5
    mu: Annotated[BelowOne, "what stays of a weight's sensitivity from batch to batch"] = 0.95
    over: Annotated[
        Literal["clients", "weights"],
        "the most sensitive: the client for whom a weight is it, or the weight for all clients",
    ] = "clients"
    name = "elastic"
    equal_samples = True
    family = "merge"
    against = ("labels",)
    use_when = (
        "Clients drift apart in few sensitive weights, and the others may move faster; works with any"
        " local training."
    )
    merges = True

    def shares(self, fed: Fed) -> dict[str, Share]:
        w, what = fed.net.weights(), "how much outputs depend on each weight, times samples"
        reads: Literal["each", "sum"] = "each" if self.over == "clients" else "sum"
        return {
            f"omega/{n}": Share(
                tuple(w[n].shape), low=0, reads=reads, what=what, kind="weights", samples="client"
            )
            for n in fed.shared
        }

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"omega": {n: torch.zeros_like(w[n]) for n in fed.shared}}

    def begin(self, w: Weights, c: Client) -> Tree:
        omega, learnt = c.mine["omega"], {n: w[n] for n in c.fed.shared}
        for b in batches(c):

            def length(learnt: Weights, b: Batch = b) -> Tensor:
                return b.mean(c.run(w | learnt, b.x).flatten(1).pow(2).sum(1))

            g = c.gradients(length, learnt)
            nonempty = b.weight.sum() > 0  # padding, if other clients have more batches
            new = (1 - self.mu) * nonempty
            omega = {n: t + new * (g[n].abs() - t) for n, t in omega.items()}
        return {"omega": omega}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        omega = c.round["omega"]
        return {"omega": {n: t * c.n for n, t in omega.items()}}, {"omega": omega}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        mean, n_K = weighted_mean(w, ups), ups.sizes
        omega = {n: t_K.double().sum(0) / float(n_K.sum()) for n, t_K in ups["omega"].items()}
        if self.over == "clients":
            most = {n: (t_K.double() / _tall(n_K, t_K)).amax(0) for n, t_K in ups["omega"].items()}
        else:
            top = torch.stack([t.max() for t in omega.values()]).max()
            most = {n: torch.full_like(t, float(top)) for n, t in omega.items()}
        zeta = {n: 1 + self.tau - t / most[n].clamp(min=1e-300) for n, t in omega.items()}
        return mean | {n: w[n] + z.to(w[n].dtype) * (mean[n] - w[n]) for n, z in zeta.items()}, s


def _tall(n_K: Tensor, like_K: Tensor) -> Tensor:
    """Numbers of samples of the clients, [K, 1, ...], to divide their stacked tensors."""
    return n_K.to(like_K.device).reshape(-1, *[1] * (like_K.dim() - 1))
