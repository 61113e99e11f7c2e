"""AdCol (Li, He & Song, ICML 2023): features from which a discriminator cannot tell the client.

Client: CE(z, y) + mu mean_i KL(u || D(h_i))
        D: the discriminator's softmax over the K clients, a constant; u = 1/K
Up:     the features h of all its samples under the trained model
Server: trains D by SGD on the cross-entropy of the client that each feature came from
        D: Linear-ReLU-Linear-ReLU-Linear without biases
As in the paper, models stay with the clients; with `aggregate_weights` they are merged, as FL-bench runs it.
Differs from the paper: D has no batch normalisation. Features are those of the trained model in evaluation
mode; the paper takes the features of the last epoch during training. D begins at random and takes part from
round 1 on. Defaults are those of FL-bench, which applies a softmax to u, although it is uniform, and runs D
in evaluation mode.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Out, Part, Share, Tensor, Tree, Ups, Weights, key
from unskew.formats.setting_ranges import NonNegative, Rate
from unskew.methods.shared.declarations import uniform


@dataclass(frozen=True)
class AdCol(Part):
    """Trains a discriminator of clients at the server, and clients to deceive it by their features."""

    mu: Annotated[NonNegative, "weight of deceiving the discriminator; 0 leaves it unheard"] = 0.5
    lr: Annotated[Rate, "learning rate of the discriminator's SGD"] = 0.01
    epochs: Annotated[
        int, Ge(1), Le(10_000), "passes over all features that train the discriminator, a round"
    ] = 3
    width: Annotated[int, Ge(1), Le(16_384), "units of each of its two hidden layers"] = 512
    aggregate_weights: Annotated[
        bool, "merge the weights too; False: only features are sent, as in the paper"
    ] = False
    name = "adcol"
    family = "representation"
    against = ("features",)
    use_when = "Clients' inputs look different, and the server may see the features of single samples."
    tasks = ("classification",)
    needs = "labels that are classes"

    @property
    def divides(self) -> bool:  # type: ignore[override]
        return not self.aggregate_weights

    def keeps(self, name: str, fed: Fed) -> bool:
        return not self.aggregate_weights

    def shares(self, fed: Fed) -> dict[str, Share]:
        kind, most = fed.kind_at("features", "features"), int(fed.sizes.max())
        return {"h": Share((most, fed.features), reads="each", what="features of every sample", kind=kind)}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        generator = key(fed.seed, self.name, "discriminator")
        widths = (fed.features, self.width, self.width, fed.clients)
        layers = {
            f"layer{i}": uniform(out, inside, generator) for i, (inside, out) in enumerate(pairwise(widths))
        }
        return {"D": layers}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        log_D = client_logits(c.down["D"], out.features).log_softmax(-1)
        return self.mu * b.mean(-log_D.mean(-1) - torch.tensor(float(c.fed.clients)).log())

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        most = int(c.fed.sizes.max())
        h_ND = torch.cat([torch.where(b.weight[:, None] > 0, c.features(w, b.x), 0.0) for b in c.batches()])
        return {"h": F.pad(h_ND, (0, 0, 0, most))[:most]}, {}

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        D = {n: t.clone().requires_grad_() for n, t in s["D"].items()}
        h_ND = torch.cat([h[: int(n)] for h, n in zip(ups["h"], ups.sizes)])
        k_N = ups.clients.repeat_interleave(ups.sizes.long()).to(h_ND.device)
        sgd, generator = torch.optim.SGD(list(D.values()), self.lr), key(fed.seed, ups.t, self.name)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(h_ND), generator=generator).to(h_ND.device).split(fed.batch):
                with torch.enable_grad():
                    loss = F.cross_entropy(client_logits(D, h_ND[rows]), k_N[rows])
                sgd.zero_grad()
                loss.backward()
                sgd.step()
        return {"D": {n: t.detach() for n, t in D.items()}}


def client_logits(D: Weights, h_BD: Tensor) -> Tensor:
    """Logits of the discriminator, [B, K]."""
    for i in range(len(D)):
        h_BD = F.linear(h_BD if i == 0 else h_BD.relu(), D[f"layer{i}"])
    return h_BD
