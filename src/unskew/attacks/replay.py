"""Listening to a round: the exchange that keeps what the server's reader gets, and a store that is only read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from unskew.core import encoding
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.store import Store


@dataclass(frozen=True)
class Visit:
    """One trip: the Part that asked, what the clients were sent, their private state, and what came back."""

    part: Part
    trip: Trip
    start: Start
    private: Mapping[int, Tree]
    replies: Sequence[Reply]

    @property
    def key(self) -> str:
        return self.part.name


@dataclass
class Heard:
    """All that was carried in one round, or before the first one.

    start: what was broadcast. private: the clients' private state, which no reader gets. replies: of the training.
    """

    start: Start | None = None
    private: Mapping[int, Tree] = field(default_factory=dict[int, Tree])
    replies: Sequence[Reply] = ()
    visits: list[Visit] = field(default_factory=list[Visit])

    def visit(self, part: str) -> Visit | None:
        """The trip of the Part of this name, if one took place."""
        return next((v for v in self.visits if v.part.name == part), None)


class Listener:
    """An exchange that carries what a trainer sends and keeps it; `heard` is what it kept since the last `forget`."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.device, self.sent, self.kept, self.hooks = trainer.device, trainer.sent, trainer.kept, trainer.hooks
        self.chance = trainer.chance
        self.heard = Heard()

    def forget(self) -> None:
        """Begin a new round."""
        self.heard = Heard()

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """The clients' replies, which are kept; encoded weights as whoever reads them decodes them."""
        replies = self.trainer.train(start, cohort, private)
        method, fed = self.trainer.method, self.trainer.fed
        self.heard.start, self.heard.private = start, private
        self.heard.replies, _ = encoding.decoded(method, replies, start.received, fed, start.t)
        return replies

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """What a trip brings, which is kept."""
        replies = self.trainer.visit(trip, part, start, ids, private)
        self.heard.visits.append(Visit(part, trip, start, private, replies))
        return replies

    def remarks(self) -> list[tuple[str, str]]:
        """Nothing: the run has said it."""
        return []

    def resized(self) -> int:
        """0: the round has the lanes that it was recorded with, or it would end with other bits."""
        return 0

    def close(self) -> None:
        """End the trainer's threads."""
        self.trainer.close()


class Overlay:
    """A store of private state that is read; what is put there stays in memory."""

    def __init__(self, below: Store):
        self.below, self.above = below, dict[int, Tree]()

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        ids = list(clients)
        below = self.below.fetch([k for k in ids if k not in self.above])
        return below | {k: self.above[k] for k in ids if k in self.above}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self.above |= {k: tree for k, tree in trees.items() if tree}

    def known(self) -> list[int]:
        return sorted({*self.below.known(), *self.above})
