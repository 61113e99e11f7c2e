"""FedAS (Yang, Huang & Ye, CVPR 2024): fits the received body to the client; weighs by Fisher information.

Client: its head p_k stays with it; m_c: its mean feature of class c under the body that it trained
        last
        before training, the received body takes one pass of SGD over its batches at rate `rate`, on
        sum_c mean_{i: y_i = c} |f_i - m_c|^2 / D
        then it trains body and head, and sends the body and
        F_k = sum over batches |grad CE|^2, over all weights that it trained
Server: w = sum_k F_k w_k / sum_k F_k;   the mean by size if all F_k are 0
Test:   a client's own score is that of the model it trained last; other scores are those of its
        head on the body w
Differs from the paper: details follow the public code: its alignment is to the mean feature of each class,
where the paper writes one mean feature of a client; F is that of each batch's mean loss, and the clients
that replied in the round count. Gradients of the alignment and of F are those of the model in evaluation
mode; the alignment uses the batch size of training, in the code 16.
Defaults: those of the official program.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Remembered, Share, Tensor, Tree, Ups, Weights
from unskew.merge.mean import weighted_mean
from unskew.methods.fedala import batches


@dataclass(frozen=True)
class FedAS(Remembered):
    """Keeps heads at the clients, fits the received body to each client before training, and weighs clients
    by Fisher information."""

    rate: Annotated[
        float, Ge(0), Le(1000), "learning rate with which the received body is aligned; 0: it is not"
    ] = 0.01
    passes: Annotated[int, Ge(1), Le(1000), "passes over a client's samples that align the received body"] = 1
    name = "fedas"
    family = "personalised"
    equal_samples = True
    against = ("labels", "absence")
    use_when = (
        "Clients keep personal heads and often miss rounds, so that heads and the common body drift apart."
    )
    tasks = ("classification",)
    needs = "means of features by class"
    divides = True
    merges = True
    weights_read = "each"

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head()

    def keeps(self, name: str, fed: Fed) -> bool:
        return fed.net.of_head(name)

    def shares(self, fed: Fed) -> dict[str, Share]:
        what = "sum of squared gradients"
        return {"F": Share((), low=0, reads="each", what=what, kind="statistics", samples="client")}

    def begin(self, w: Weights, c: Client) -> Tree:
        sums_CD, n_C = c.class_sums(self.last(w, c))
        return {"m": sums_CD / n_C.clamp(min=1)[:, None]}

    def starts(self, w: Weights, c: Client) -> Weights:
        body = {n: w[n] for n in c.net.trainable if n in c.fed.shared}
        for _ in range(self.passes):
            for b in batches(c):

                def apart(body: Weights, b: Batch = b) -> Tensor:
                    f_BD, y_BC = c.features(w | body, b.x), b.y * b.weight[:, None]
                    far_B = (f_BD - b.y @ c.round["m"]).pow(2).mean(1)
                    return (y_BC / y_BC.sum(0).clamp(min=1) * far_B[:, None]).sum()

                g = c.gradients(apart, body)
                body = {n: t - self.rate * g[n] for n, t in body.items()}
        return w | body

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        learnt = {n: w[n] for n in c.net.trainable}
        total = torch.zeros_like(c.n)
        for b in batches(c):

            def loss(learnt: Weights, b: Batch = b) -> Tensor:
                return b.mean(c.fed.task.loss(c.run(w | learnt, b.x), b.y))

            total = total + sum(g.pow(2).sum() for g in c.gradients(loss, learnt).values())
        return {"F": total}, super().finish(w, c)[1]

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        F_K = ups["F"].double().cpu()
        return weighted_mean(w, replace(ups, sizes=F_K), "size") if F_K.sum() else weighted_mean(w, ups), s
