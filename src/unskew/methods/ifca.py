"""IFCA (Ghosh, Chung, Yin & Ramchandran, NeurIPS 2020, arXiv 2006.04088): clients choose one of k models.

Client: j = argmin_j F_k(th_j), the mean loss over all its samples
        trains from th_j, and sends the result and j
Server: th_j <- mean of w_k over the clients that chose j;   th_j does not change if none did
Test:   a client's own score is that of the model that it would choose
The method is the paper's model averaging. The k models begin as the model and k - 1 others with its numbers
in another order, tensor by tensor, and so with the same distribution. The global model w is the mean of all
replies; it is not trained, and its scores mean little.
For other Parts, the model that a client chose is the one that it received: `fedprox` pulls to th_j.
Differs from the paper: it has no term for clients that share some of their layers (a Part that divides the
model, such as `fedper`, does that). The official code starts anew with other models if clusters come out
badly; in ours, take another seed. Models with batch normalisation are refused, because running statistics are
not part of the k models; official code has models without.
Defaults: two clusters, as in the authors' file for CIFAR-10; they have four for MNIST.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Part, Share, Tensor, Tree, Ups, Weights
from unskew.core.trees import row_at
from unskew.merge.mean import weighted_mean
from unskew.methods.shared.weights import shuffle_tensor


@dataclass(frozen=True)
class IFCA(Part):
    """Lets each client choose among several models the one that fits its data."""

    clusters: Annotated[int, Ge(1), Le(100), "how many models there are"] = 2
    name = "ifca"
    family = "clusters"
    equal_samples = True
    against = ("labels", "features")
    use_when = "Clients form a few unknown groups, and links can carry all models to every client."
    merges = True
    weights_read = "each"
    weighting = "equal"
    personal = True
    chooses = True

    def refuse(self, fed: Fed) -> str | None:
        if [n for n in fed.net.buffers if n not in fed.net.constants]:
            return (
                "running statistics of batch normalisation would be those of all clusters; take a model"
                " without"
            )
        return None

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {
            "models": {
                n: torch.stack([self._drawn(w[n], n, j, fed) for j in range(self.clusters)])
                for n in fed.shared
            }
        }

    def shares(self, fed: Fed) -> dict[str, Share]:
        shape = (self.clusters,)
        return {
            "took": Share(
                shape, low=0, high=1, reads="each", what="its cluster", kind="statistics", samples="client"
            )
        }

    def begin(self, w: Weights, c: Client) -> Tree:
        return {"took": self._nearest(w, c)}

    def starts(self, w: Weights, c: Client) -> Weights:
        return w | self._model(c.round["took"], c)

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        took = torch.arange(self.clusters, device=c.round["took"].device) == c.round["took"]
        return {"took": took.float()}, c.mine

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        took_Kj = ups["took"].double()
        p_Kj = took_Kj * torch.tensor(ups.shares_of_weight(), device=took_Kj.device)[:, None]
        p_j = p_Kj.sum(0)
        models = {n: t.clone() for n, t in s["models"].items()}
        for j in torch.nonzero(p_j).flatten().tolist():
            for n, t in models.items():
                t[j] = torch.einsum("k,k...->...", p_Kj[:, j] / p_j[j], ups.stack(n).double())
        return weighted_mean(w, ups), {"models": models}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return w | self._model(self._nearest(w, c), c)

    def _nearest(self, w: Weights, c: Client) -> Tensor:
        """The number of the model with the least loss on the client's samples."""
        models = [w | {n: t[j] for n, t in c.down["models"].items()} for j in range(self.clusters)]

        def losses(b: Batch) -> dict[str, Tensor]:
            each = [(c.fed.task.loss(c.run(th, b.x), b.y) * b.weight).sum() for th in models]
            return {"sum": torch.stack(each)}

        return c.total(losses)["sum"].argmin()

    def _model(self, j: Tensor, c: Client) -> Weights:
        return {n: row_at(t, j) for n, t in c.down["models"].items()}

    def _drawn(self, t: Tensor, name: str, j: int, fed: Fed) -> Tensor:
        """The initial tensor of model j; model 0 has it unchanged."""
        return shuffle_tensor(t, fed.seed, self.name, name, j) if j else t.clone()
