"""The interface of users' callbacks, which are called while a run trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from unskew.config import Settings
from unskew.core.trees import Weights


@dataclass(frozen=True)
class Replied:
    """A reply of a round. client: its number. name: its name. samples: the number that it reports.

    loss: its mean training loss, NaN if clients do not report it. used: whether the reply is merged.
    """

    client: int
    name: str
    samples: float
    loss: float
    used: bool


class Progress(Protocol):
    """A run as its callbacks see it; everything is read-only, and tensors are copies.

    t: the last finished round or, between `round_begun` and `merged`, the current one. rounds: the number of
    planned rounds. method: as text. clients: their names, at most the first 2,000. main_score: such as
    "accuracy". folder: of the run; None if it is kept in memory.
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
        """(rounds, values) of a score over all clients so far, including rounds before a resumption."""
        ...

    def weights(self) -> Weights:
        """The global weights after round t."""
        ...

    def save(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write the global model, with the Parts' slices, to a safetensors file in the run's folder."""
        ...


class Callback:
    """Methods that a run calls as it goes on. Override those that you need; by default they do nothing.

    A callback cannot change a bit of the run, but it can end it: if `evaluated` returns a sentence with the
    reason, the next round is the last. An exception ends the run with E127; the rounds before are saved.
    """

    name: str = ""
    """Its name in messages; by default that of its class."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def begun(self, run: Progress) -> None:
        """The run begins or is resumed, before the next round trains."""

    def round_begun(self, run: Progress, asked: Sequence[int]) -> None:
        """Round t begins. asked: the clients that are sent the model."""

    def replied(self, run: Progress, replies: Sequence[Replied]) -> None:
        """The replies of round t have arrived and been checked."""

    def merged(self, run: Progress) -> None:
        """Round t is merged: `run.weights()` are the weights after it."""

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Round t is over. Returns the reason to end the run, None to continue. Also called for round 0, the
        untrained model. rows: the rows of metrics.jsonl since the last call; over a network some come a round
        later."""

    def ended(self, run: Progress, why: str) -> None:
        """The run is over. why: "done", or the error that ended it."""
