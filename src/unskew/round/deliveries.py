"""What clients hold of the server's slices: a leaf travels when it has changed, to those whom it concerns.

Each content of a leaf has a number, and if every client reads one row of the leaf (`Part.row_of`), each
content of each row. It is 0 for zeros that `server_init` returned, which a client makes by itself, and
otherwise larger than any before it. A client is sent a leaf unless it holds it under the present number. What
a Part dispatches is made for each client, and always travels. The simulator counts bytes by this, and a
coordinator sends by it.

Letters: K clients, N clients that are sent a broadcast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.method import Method
from unskew.core.trees import Tree, leaves, size_in_bytes
from unskew.round.clients import Broadcast

UNKNOWN = -1
"""In place of the number of what a client holds."""
Name = tuple[str, str]
"""A Part and a leaf of its slice."""
Integers = np.ndarray[Any, np.dtype[np.int64]]
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element, the type that compares elements by their bits."""


@dataclass
class Leaf:
    """value: at the server. number: of its content, [] or [K] by row. held_K: the numbers at the clients."""

    value: Any
    number: Integers
    held_K: Integers


class Deliveries:
    """Records which leaves of the slices each client holds."""

    def __init__(self, method: Method, clients: int):
        self.clients = clients
        self.parts = {p.name: p for p in method.parts if p is not method.dispatcher}
        self.leaves: dict[Name, Leaf] = {}

    def begin(self, slices: Mapping[str, Tree]) -> None:
        """Number the slices that `server_init` returned."""
        self._renumber(slices)
        for leaf in self.leaves.values():
            if not any(t.any() for t in _tensors(leaf.value)):
                leaf.number[...] = 0

    def send(self, start: Broadcast, ids: Sequence[int]) -> Delivery:
        """The leaves of a broadcast that these clients lack. Call `Delivery.settle` with those that received
        them."""
        self._renumber(start.down)
        ids_N, numbers, lacking = np.array(ids, np.int64), dict[Name, Integers](), dict[Name, Any]()
        for name in [(part, leaf) for part, slice_ in start.down.items() for leaf in slice_]:
            if known := self.leaves.get(name):
                rows_N = self.rows(name, ids_N)
                number_K = np.broadcast_to(known.number, self.clients)
                numbers[name] = wanted_N = np.where(rows_N < 0, 0, number_K[rows_N])
                lacking[name] = (wanted_N != 0) & (wanted_N != known.held_K[ids_N])
        return Delivery(self, start, ids_N, numbers, lacking)

    def forget(self, ids: Collection[int]) -> None:
        """Count on nothing at these clients."""
        for leaf in self.leaves.values():
            leaf.held_K[list(ids)] = UNKNOWN

    def state(self, slices: Mapping[str, Tree]) -> Tree:
        """A copy of the numbers as tensors, for a checkpoint with these slices."""
        self._renumber(slices)
        tree: Tree = {}
        for (part, name), leaf in self.leaves.items():
            numbers = {"number": torch.tensor(leaf.number), "held": torch.tensor(leaf.held_K)}
            tree.setdefault(part, {})[name] = numbers
        return tree

    def restore(self, state: Tree, slices: Mapping[str, Tree]) -> None:
        """Continue from the numbers of a checkpoint with these slices."""
        for part, by_leaf in state.items():
            for name, numbers in by_leaf.items():
                number, held_K = (numbers[n].cpu().numpy().copy() for n in ("number", "held"))
                self.leaves[part, name] = Leaf(slices[part][name], number, held_K)

    def is_by_row(self, name: Name) -> bool:
        """Whether every client reads one row of this leaf."""
        return name[1] in self.parts[name[0]].row_of

    def rows(self, name: Name, ids_N: Integers) -> Integers:
        """The row of a leaf that each of these clients reads, -1 for none; its own if it reads all."""
        index = self.parts[name[0]].row_of.get(name[1], "")
        return self.leaves[name[0], index].value.cpu().numpy()[ids_N] if index else ids_N

    def _renumber(self, slices: Mapping[str, Tree]) -> None:
        """Give new numbers to what has changed."""
        for part, slice_ in slices.items():
            for leaf, value in slice_.items() if part in self.parts else ():
                if leaf in self.parts[part].keeps_at_server or not _tensors(value):
                    continue
                known = self.leaves.get((part, leaf))
                by_row = self.is_by_row((part, leaf))
                if known is None:
                    number = np.arange(1, 1 + self.clients) if by_row else np.array(1)
                    self.leaves[part, leaf] = Leaf(value, number, np.full(self.clients, UNKNOWN))
                elif value is not known.value:
                    changed = _changed_rows(known.value, value) if by_row else not _same(known.value, value)
                    fresh = known.number.max(initial=0) + 1 + np.arange(np.count_nonzero(changed))
                    known.number[changed] = fresh
                    known.value = value


@dataclass(frozen=True)
class Delivery:
    """The slices of a broadcast to some clients. numbers: of the leaves that they should hold, [N]; lacking:
    whether each is sent, bool [N]."""

    deliveries: Deliveries
    start: Broadcast
    ids_N: Integers
    numbers: Mapping[Name, Integers]
    lacking: Mapping[Name, Any]

    def bytes(self, part: str) -> dict[int, int]:
        """The bytes of a Part's slice by client."""
        names = [name for name in self.numbers if name[0] == part]
        if part not in self.deliveries.parts and len(self.ids_N):  # it is dispatched; all have one size
            each_N = np.full(len(self.ids_N), size_in_bytes(self.start.to(int(self.ids_N[0])).down[part]))
        else:
            each_N = sum((self.lacking[n] * self._bytes(n) for n in names), np.zeros(len(self.ids_N), int))
        return dict(zip(self.ids_N.tolist(), each_N.tolist()))

    def contents(self, k: int) -> tuple[tuple[Name, int], ...]:
        """(leaf, row) of everything that client k is sent; -1 for a whole leaf. Nothing of what is
        dispatched."""
        (i,) = np.flatnonzero(self.ids_N == k)[:1]
        return tuple((name, self._row(name, k)) for name, lacks_N in self.lacking.items() if lacks_N[i])

    def slices(self, k: int) -> dict[str, Tree]:
        """The slices that client k is sent, with a single row [1, ...] of a leaf of which it reads one."""
        sent = {part: dict(tree) for part, tree in self.start.to(k).down.items()}
        down = {part: tree for part, tree in sent.items() if part not in self.deliveries.parts}
        for (part, leaf), row in self.contents(k):
            value = self.start.down[part][leaf]
            down.setdefault(part, {})[leaf] = value if row < 0 else value[row : row + 1]
        return down

    def numbers_of(self, k: int) -> dict[str, int]:
        """The number of each leaf that client k should hold after this message, by `part/leaf`."""
        (i,) = np.flatnonzero(self.ids_N == k)[:1]
        return {f"{part}/{leaf}": int(number_N[i]) for (part, leaf), number_N in self.numbers.items()}

    def settle(self, arrived: Collection[int]) -> None:
        """Note who has answered; what others hold of the leaves that they were sent is unknown."""
        if not self.lacking:
            return
        came_N = np.isin(self.ids_N, list(arrived))
        for name, lacks_N in self.lacking.items():
            now_N = np.where(came_N, self.numbers[name], UNKNOWN)
            self.deliveries.leaves[name].held_K[self.ids_N[lacks_N]] = now_N[lacks_N]

    def _row(self, name: Name, k: int) -> int:
        return int(self.deliveries.rows(name, np.array([k]))[0]) if self.deliveries.is_by_row(name) else -1

    def _bytes(self, name: Name) -> int:
        size = size_in_bytes({"": self.start.down[name[0]][name[1]]})
        return size // self.deliveries.clients if self.deliveries.is_by_row(name) else size


def _tensors(value: Tree | Tensor) -> list[Tensor]:
    return [t for _, t in leaves({"": value})]


def _same(before: Any, now: Any) -> bool:
    """Whether two leaves are equal to the bit, strides included, on which sums over them depend."""
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        form = (before.shape, before.dtype, before.stride()) == (now.shape, now.dtype, now.stride())
        return form and torch.equal(_bits(before), _bits(now))
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return before.keys() == now.keys() and all(_same(before[n], now[n]) for n in before)
    return False


def _changed_rows(before: Tensor, now: Tensor) -> Any:
    """bool [K]: the rows that have changed."""
    if (before.shape, before.dtype) != (now.shape, now.dtype):
        return np.ones(len(now), bool)
    return (_bits(before) != _bits(now)).reshape(len(now), -1).any(1).cpu().numpy()


def _bits(t: Tensor) -> Tensor:
    words = _WORDS.get(t.element_size())
    return t.view(words) if words else t
