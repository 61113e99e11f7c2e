"""What a user's callback is told while a run trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from unskew.config import Settings
from unskew.core.trees import Weights


@dataclass(frozen=True)
class Replied:
    """A reply that arrived. client: its number; name: what it is called; samples: that it says it trained on.

    loss: its mean training loss, NaN where clients do not say. used: whether the reply was merged.
    """

    client: int
    name: str
    samples: float
    loss: float
    used: bool


class Progress(Protocol):
    """A run as its callbacks see it; everything is read only, and tensors are copies.

    t: the last round that is finished or, between `round_begun` and `merged`, the one that trains. rounds:
    how many there will be, if nothing ends the run before. method: as text. clients: their names, at most the
    first 2,000.
    main_score: such as "accuracy". folder: of the run; None if it is kept in memory.
    """

    @property
    def t(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def method(self) -> str: ...
    @property
    def clients(self) -> tuple[str, ...]: ...
    @property
    def main_score(self) -> str: ...
    @property
    def folder(self) -> Path | None: ...

    def series(self, scope: str, metric: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of a score over all clients so far, those of before a resumption included."""
        ...

    def weights(self) -> Weights:
        """The global weights after round t."""
        ...

    def save(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write the global model as it is, with what Parts broadcast, to a safetensors file in the run's
        folder."""
        ...


class Callback:
    """Is told how a run goes. Override what you need; every method does nothing by default.

    What a callback does changes no bit of the run, unless it ends it: `evaluated` may return a sentence that
    says why, and the round after is the last. An exception ends the run with E159, and the rounds before are
    saved.
    """

    name: str = ""
    """What messages call it; the name of its class unless it says otherwise."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def begun(self, run: Progress) -> None:
        """The run begins or is resumed; nothing has been trained since."""

    def round_begun(self, run: Progress, asked: Sequence[int]) -> None:
        """Round t begins. asked: the clients that are asked."""

    def replied(self, run: Progress, replies: Sequence[Replied]) -> None:
        """The replies of round t have arrived and been checked."""

    def merged(self, run: Progress) -> None:
        """Round t is merged: `run.weights()` are those after it."""

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Round t is over. rows: what was written to metrics.jsonl since the last call; over a network some
        come a round later. Returns why the run should end, None to go on. Also called for round 0, the
        untrained model."""

    def ended(self, run: Progress, why: str) -> None:
        """The run is over. why: "done", or the error that ended it."""
