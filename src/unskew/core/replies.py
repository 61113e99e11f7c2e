"""What comes back from clients, and how the server's hooks see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unskew.core.trees import Tree, Weights


@dataclass
class Reply:
    """One client's answer. `shares[part]` is the tree its `finish` (or trip) returned; `private` stays in the client."""

    client: int
    size: float
    weights: Weights
    shares: dict[str, Tree] = field(default_factory=dict)
    private: Tree = field(default_factory=dict)
    loss: float | Tensor = 0.0


@dataclass(frozen=True)
class Ups:
    """The replies of one exchange as one Part sees them, in the order of client ids.

    `ups["leaf"]` is the stack [K, ...] of what the clients shared, or a list where the number of rows differs.
    """

    clients: Tensor
    sizes: Tensor
    replies: Sequence[Reply]
    t: int = 0
    weighting: str = "size"
    part: str = ""

    @staticmethod
    def of(replies: Sequence[Reply], t: int = 0, weighting: str = "size") -> Ups:
        """weighting: how the method weighs clients in the merge, "size" or "equal"."""
        ordered = sorted(replies, key=lambda r: r.client)
        ids = torch.tensor([r.client for r in ordered], dtype=torch.int64)
        return Ups(ids, torch.tensor([r.size for r in ordered], dtype=torch.float64), ordered, t, weighting)

    def seen_by(self, part: str) -> Ups:
        return replace(self, part=part)

    def __len__(self) -> int:
        return len(self.replies)

    def __contains__(self, leaf: str) -> bool:
        return bool(self.replies) and leaf in self.replies[0].shares.get(self.part, {})

    def __getitem__(self, leaf: str) -> Any:
        return _together([r.shares[self.part][leaf] for r in self.replies])

    def stack(self, name: str) -> Tensor:
        """One weight of every client, [K, ...]."""
        return torch.stack([r.weights[name] for r in self.replies])

    def shares_of_weight(self, weighting: str | None = None) -> list[float]:
        """What each client counts for in the merge, as the method weighs them unless told; sums to 1."""
        raw = torch.ones(len(self)) if (weighting or self.weighting) == "equal" else self.sizes
        raw = raw.to(torch.float64)
        return (raw / raw.sum()).tolist()


def _together(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {n: _together([v[n] for v in values]) for n in first}
    if all(v.shape == first.shape for v in values):
        return torch.stack(list(values))
    return list(values)
