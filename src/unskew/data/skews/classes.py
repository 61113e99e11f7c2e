"""Every client holds a fixed number of classes: client i owns class i mod C and others at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from unskew.data.clients.partition import Index, Partition, Request, split_among_owners


@dataclass(frozen=True)
class Classes(Partition):
    """Quantity skew Qua(Q) of FLea: a class is split evenly among the clients that own it."""

    count: Annotated[int, Gt(0), "classes per client"]
    name = "classes"
    value = ("count",)
    example = "classes:2"

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        C = request.classes
        self.require_classes(self.count, request)
        first_K = np.arange(request.clients) % C
        other_classes = np.tile(np.arange(C), (C, 1))[~np.eye(C, dtype=bool)].reshape(C, C - 1)[first_K]
        client_classes = np.column_stack([first_K, rng.permuted(other_classes, axis=1)[:, : self.count - 1]])
        return split_among_owners(list(client_classes), request, rng)
