"""FedRoD (Chen & Chao, ICLR 2022, arXiv 2107.00778): a balanced generic head and a personal head.

Client: z = G(phi(x)),   loss  CE(z + log n_k, y)  +  CE(P(h) + G(h), y)
        n_k: the client's samples of each class
        in the second term phi and G are constants (h = phi(x)), so only P learns from it
        P stays with the client
Test:   the global model predicts by G; a client's own score is that of the head P + G
Differs from the paper: P begins at 0, so that a client begins with the generic predictions (third-party code
copies G). P and the model take their steps at the same time, by one optimiser. P is the paper's linear head;
the hypernetwork that makes P from n_k is left out.
"""

from dataclasses import dataclass

import torch
from torch import nn

from unskew.core import Batch, Client, Fed, Out, Part, Tensor, Weights, under
from unskew.methods.bsm import conflicts_of_prior


@dataclass(frozen=True)
class FedRoD(Part):
    """Trains body and head with balanced softmax, and a personal head on top of both by plain
    cross-entropy."""

    name = "fedrod"
    family = "personalised"
    against = ("labels",)
    use_when = "Labels are skewed, and both a good common model and one for each client are needed."
    tasks = ("classification",)
    plain_loss = True
    needs = "class counts"
    divides = True
    personal = True
    clashes = conflicts_of_prior(name)

    def refuse(self, fed: Fed) -> str | None:
        if text := fed.net.untrained_head(alone=True):
            return text
        head = fed.net.module.get_submodule(fed.net.head)
        if isinstance(head, nn.Linear) and f"{fed.net.head}.weight" in fed.net.trainable:
            return None
        return (
            f"it adds two heads, and the model's '{fed.net.head}' is no linear layer with a weight of its own"
        )

    def weights(self, fed: Fed) -> Weights:
        return {n: torch.zeros_like(t) for n, t in fed.net.weights().items() if fed.net.of_head(n)}

    def keeps(self, name: str, fed: Fed) -> bool:
        return name.startswith(f"{self.name}.")

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        return z + c.counts.log()

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        own = c.head(w | under(w, self.name), out.features.detach())
        return b.mean(c.fed.task.loss(own + out.raw.detach(), b.y))

    def personalise(self, w: Weights, c: Client) -> Weights:
        return w | {n: w[n] + p for n, p in under(w, self.name).items()}
