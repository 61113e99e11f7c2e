"""A method in twenty lines: pull every client's features towards the class means of all clients."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge

from unskew import Part, Share


@dataclass(frozen=True)
class MyProto(Part):
    """Draws features to the mean of their class over all clients."""

    pull: Annotated[float, Ge(0), "strength of the pull; 0 is FedAvg"] = 0.1
    name = "myproto"
    neutral = {"pull": 0.0}  # with this it is FedAvg, which `unskew check` then verifies

    def shares(self, fed):
        return {
            "sums": Share((fed.classes, fed.features), kind="sums", samples="class", what="sums of features"),
            "counts": Share(
                (fed.classes,), low=0, kind="statistics", samples="class", what="samples of a class"
            ),
        }

    def server_init(self, w, fed):
        return {"means": torch.zeros(fed.classes, fed.features), "known": torch.zeros(fed.classes)}

    def loss(self, w, out, b, c):
        squares = (out.features - b.y @ c.down["means"]).pow(2).mean(-1)
        return self.pull * b.mean(squares * (b.y @ c.down["known"]))

    def finish(self, w, c):
        sums, counts = c.class_sums(w)
        return {"sums": sums, "counts": counts}, {}

    def server(self, s, ups, fed):
        counts = ups["counts"].sum(0)
        return {"means": ups["sums"].sum(0) / counts.clamp(min=1)[:, None], "known": (counts > 0).float()}
