"""FedData (Zhao et al. 2018, arXiv 1806.00582): clients upload a tenth of their raw data; an upper reference.

Once, before round 1, clients send a share of their samples with labels; the server sends the union P to all
clients.
Client: trains on its own data and P together; the merge weighs it by its own samples
Differs from the paper: its shared set belongs to the server, has equal numbers of all classes, and trains the
first model; ours comes from clients, as in FLea's comparison. A local epoch takes as many steps as without P,
and each of its samples is drawn from P with probability |P| / (|P| + n_k). The original passes through all of
P in every epoch, which takes many times longer for small clients; `epochs` times (|P| + n_k) / n_k
corresponds to it.
Defaults: a tenth, as in FLea's comparison.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Batch, Client, Fed, Noise, Part, Share, Tensor, Tree, Trip, Ups, Weights
from unskew.formats.setting_ranges import Fraction
from unskew.methods.shared.declarations import before_training, row_labels


@dataclass(frozen=True)
class FedData(Part):
    """Shares raw samples of every client with all clients."""

    share: Annotated[
        Fraction, "share of a client's samples that it uploads, at least one sample; 0 is FedAvg"
    ] = 0.1
    name = "feddata"
    family = "data"
    equal_samples = True
    against = ("labels", "scarcity")
    use_when = "As an upper reference: what sharing a tenth of the raw data would bring."
    untuned = {"share": "it decides how much leaves a client"}
    tasks = ("classification",)
    needs = "labels that are classes"

    @property
    def trips(self) -> tuple[Trip, ...]:
        if not self.share:
            return ()
        return before_training(self.upload, self.collect, self.uploads)

    def uploads(self, fed: Fed) -> dict[str, Share]:
        rows = max(1, int(self.share * int(fed.sizes.max())))
        return {
            "x": Share((None, *fed.shape), rows=rows, reads="each", what="raw inputs", kind="inputs"),
            "labels": row_labels(fed, rows, "their labels"),
        }

    def upload(self, w: Weights, c: Client) -> Tree:
        b = c.sample(max(1, int(self.share * int(c.n))), self.name, raw=True)
        return {"x": b.x, "labels": b.y.argmax(1)}

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w, {leaf: torch.cat(tuple(ups[leaf])) for leaf in ("x", "labels")} if len(ups) else s

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"x": torch.zeros(0, *fed.shape), "labels": torch.zeros(0, dtype=torch.int64)}

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor]:
        return down["x"], down["labels"]

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        pool = len(down["labels"])
        return {"row": Noise("cycle", (pool,)), "turn": Noise("uniform")} if pool else {}

    def batch(self, b: Batch, c: Client) -> Batch:
        if "row" not in c.noise:
            return b
        pool = len(c.down["labels"])
        pooled_B = c.noise["turn"] < pool / (pool + c.n)
        y_BC = c.fed.task.targets(c.down["labels"][c.noise["row"]], c.fed.classes)
        x = torch.where(_wide(pooled_B, b.x), c.down["x"][c.noise["row"]], b.x)
        return b.replace(x=x, y=torch.where(pooled_B[:, None], y_BC, b.y))


def _wide(mask_B: Tensor, x: Tensor) -> Tensor:
    return mask_B.reshape(-1, *[1] * (x.dim() - 1))
