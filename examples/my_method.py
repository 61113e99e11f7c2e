"""A method in twenty lines: pull every client's features towards the class means of all clients."""

from dataclasses import dataclass

import torch

from unskew import Part, Share


@dataclass(frozen=True)
class MyProto(Part):
    """pull: strength of the term that draws features to their class's mean, >= 0."""

    pull: float = 0.1
    name = "myproto"
    neutral = {"pull": 0.0}  # with this it is FedAvg, which `unskew check` then verifies

    def shares(self, fed):
        return {"sums": Share((fed.classes, fed.features)), "counts": Share((fed.classes,), low=0)}

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
