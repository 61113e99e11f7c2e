"""FedEM (Marfoq, Neglia, Bellet, Kameni & Vidal, NeurIPS 2021, arXiv 2108.10252): mixtures of common models.

Client: q_ij = pi_j e^-l(th_j; x_i, y_i) / sum_m pi_m e^-l(th_m; x_i, y_i)
        with the received th and the pi of the last round
        pi_j <- mean_i q_ij over all its samples
        th_j descends  mean_i q_ij l(th_j; x_i, y_i),  all j at the same time
Server: th_j <- weighted mean of th_j over the replies, separately for each j;   pi stays with the
        client
Test:   p(c) = sum_j pi_j softmax(z_j)_c;   a client's own score uses its pi, all others 1/M for
        each j
th_0 is the model; the others begin with its numbers in another order, tensor by tensor, and so with the same
distribution.
Differs from the paper: the paper draws each th_j separately. Its q are those of the beginning of the round,
as here; they are computed again for the samples of each step, at the cost of M more forward passes. A client
that has never taken part has no own score; the paper would have it compute its pi. The changes of other Parts
to logits, loss or activations affect only th_0.
Defaults: three models, as in the authors' runs.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Tree, Weights
from unskew.core.trees import under
from unskew.methods.shared.weights import shuffle_tensor


@dataclass(frozen=True)
class FedEM(Part):
    """Trains several common models, which each client mixes by how well they explain its samples."""

    models: Annotated[int, Ge(2), Le(100), "how many common models there are"] = 3
    name = "fedem"
    family = "personalised"
    against = ("labels", "features")
    use_when = (
        "Clients mix a few kinds of data in different shares; computing and traffic are multiplied by the"
        " number of models."
    )
    tasks = ("classification",)
    plain_loss = True
    needs = "probabilities of classes"
    personal = True

    def refuse(self, fed: Fed) -> str | None:
        net = fed.net
        if [n for n in net.buffers if n not in net.constants]:
            return (
                "its models would have running statistics of batch normalisation in common; take a model"
                " without"
            )
        if [n for n in net.trainable if n not in fed.shared]:
            return (
                "every weight of its models is common, but other Parts keep or freeze some of the first one's"
            )
        return None

    def weights(self, fed: Fed) -> Weights:
        w = {n: t for n, t in fed.net.weights().items() if n in fed.net.trainable}
        others = {
            f"{j}.{n}": shuffle_tensor(t, fed.seed, self.name, n, j)
            for j in range(1, self.models)
            for n, t in w.items()
        }
        return others | {"pi": torch.full((self.models,), 1 / self.models)}

    def keeps(self, name: str, fed: Fed) -> bool:
        return name == "fedem.pi"

    def begin(self, w: Weights, c: Client) -> Tree:
        total = c.total(
            lambda b: {"q": (self.responsible(c, b) * b.weight[:, None]).sum(0), "n": b.weight.sum()}
        )
        return {"pi": total["q"] / total["n"]}

    def starts(self, w: Weights, c: Client) -> Weights:
        return w | {"fedem.pi": c.round["pi"]}

    def holds(self, c: Client) -> dict[str, Tensor]:
        return {"fedem.pi": c.step >= 0}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        own, loss = out.own, c.fed.task.loss
        q_BM = self.responsible(c, own)
        first = b.mean((q_BM[:, 0] - 1) * loss(out.logits, b.y))  # the engine adds the loss itself
        others = [
            own.mean(q_BM[:, j] * loss(c.run_training(self.th(w, j), own.x), own.y))
            for j in range(1, self.models)
        ]
        return first + torch.stack(others).sum()

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        w, x = c.start, c.inputs
        z_MBC = torch.stack([z, *(c.run(self.th(w, j), x) for j in range(1, self.models))])
        return (z_MBC.log_softmax(2) + w["fedem.pi"].log()[:, None, None]).logsumexp(0)

    def th(self, w: Weights, j: int) -> Weights:
        """The weights of model j, under the model's names."""
        return {**w, **under(w, f"{self.name}.{j}")}

    def responsible(self, c: Client, b: Batch) -> Tensor:
        """Responsibilities q of the received models, [B, M]; rows sum to 1."""
        w = c.start
        losses = [c.fed.task.loss(c.run(self.th(w, j), b.x), b.y) for j in range(self.models)]
        return (w["fedem.pi"].log() - torch.stack(losses, 1)).softmax(1).detach()
