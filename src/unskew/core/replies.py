"""The clients' replies, and how the server's hooks see them.

Letters: K clients that replied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unskew.core.shares import Share
from unskew.core.trees import Tree, Weights, sorted_tree
from unskew.errors import UsageError


class DecodeError(Exception):
    """Raised by `Part.decode` for a tree that an honest client never sends. The text is the end of a
    sentence, without full stop."""


@dataclass
class Reply:
    """One client's answer to a round or a trip.

    client: its number. size: the number of training samples that it reports. weights: its trained weights, by
    name (none in a trip). shares: by Part, the tree that `finish` or the trip returned. private: by Part, its
    next private tree; over a network this stays at the site. loss: its mean training loss, in the unit of the
    task's loss.
    """

    client: int
    size: float
    weights: Weights
    shares: dict[str, Tree] = field(default_factory=dict[str, Tree])
    private: Tree = field(default_factory=dict[str, Any])
    loss: float | Tensor = 0.0

    def __post_init__(self):
        self.shares, self.private = sorted_tree(self.shares), sorted_tree(self.private)


@dataclass(frozen=True)
class Ups:
    """The replies of one exchange as one Part sees them, in the order of clients' numbers.

    `ups["leaf"]` stacks what the clients shared, [K, ...]; it is a list if their numbers of rows differ, and
    a tree of such stacks if the leaf is a tree. `"leaf" in ups` says whether they shared it.

    clients: [K] their numbers. sizes: [K] their numbers of training samples. t: the round. weighting: how the
    merge weighs clients, "size" or "equal". part: the name of the Part that sees them. cap: the largest
    weight of one client in the merge, in (0, 1]. declared: by Part, the Shares in replies; only for
    `protect`. last: whether the run ends after this round, as planned or early.
    """

    clients: Tensor
    sizes: Tensor
    replies: Sequence[Reply]
    t: int = 0
    weighting: str = "size"
    part: str = ""
    cap: float = 1.0
    declared: Mapping[str, Mapping[str, Share]] = field(default_factory=dict[str, Mapping[str, Share]])
    last: bool = False

    @staticmethod
    def of(
        replies: Sequence[Reply], t: int = 0, weighting: str = "size", cap: float = 1.0, last: bool = False
    ) -> Ups:
        """The replies in the order of clients' numbers, for no Part in particular (see `seen_by`)."""
        ordered = sorted(replies, key=lambda r: r.client)
        ids = torch.tensor([r.client for r in ordered], dtype=torch.int64)
        sizes = torch.tensor([r.size for r in ordered], dtype=torch.float64)
        return Ups(ids, sizes, ordered, t, weighting, cap=cap, last=last)

    def seen_by(self, part: str) -> Ups:
        """These replies for the Part of this name."""
        return replace(self, part=part)

    def __len__(self) -> int:
        return len(self.replies)

    def __contains__(self, leaf: str) -> bool:
        return bool(self.replies) and leaf in self.replies[0].shares.get(self.part, {})

    def __getitem__(self, leaf: str) -> Any:
        """Raises UsageError (E127) without replies, which happens only at the server of a trip."""
        if not self.replies:
            text = f"a trip of '{self.part}' reads '{leaf}' of answers although nobody's were used"
            raise UsageError("E127", f"{text}; let its server return what it was given where len(ups) is 0.")
        return _stack([r.shares[self.part][leaf] for r in self.replies])

    def stack(self, name: str) -> Tensor:
        """One weight of every client, [K, ...]."""
        return torch.stack([r.weights[name] for r in self.replies])

    def shares_of_weight(self, weighting: str | None = None) -> list[float]:
        """Each client's weight in the merge, by `weighting` or else by the method's; they sum to 1."""
        raw = torch.ones(len(self)) if (weighting or self.weighting) == "equal" else self.sizes
        raw = raw.to(torch.float64)
        return cap_weights((raw / raw.sum()).tolist(), self.cap)


def cap_weights(weights: Sequence[float], cap: float) -> list[float]:
    """Weights with sum 1, none above `cap`; the excess is spread over the others in proportion to their
    weights. Equal weights if there are fewer than 1 / cap clients."""
    capped_K, over = list(weights), set[int]()
    if cap * len(capped_K) <= 1:
        return [1 / len(capped_K)] * len(capped_K)
    while more := {k for k, p in enumerate(capped_K) if p > cap and k not in over}:
        over |= more
        rest = sum(p for k, p in enumerate(weights) if k not in over)
        scale = (1 - cap * len(over)) / rest if rest else 0.0
        capped_K = [cap if k in over else p * scale for k, p in enumerate(weights)]
    return capped_K


def _stack(values: Sequence[Any]) -> Any:
    """Tensors as one stack, or a list if their shapes differ; trees are stacked leaf by leaf."""
    first = values[0]
    if isinstance(first, Mapping):
        return {n: _stack([v[n] for v in values]) for n in first}
    if all(v.shape == first.shape for v in values):
        return torch.stack(list(values))
    return list(values)
