"""What the round asks of whoever reaches the clients: this process's trainer, or a network of sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.engine.chance import Chance
from unskew.engine.client.values import Start
from unskew.engine.disk.store import Store


class Exchange(Protocol):
    """Carries a broadcast to clients and brings their replies back, in the order of ids.

    A client that does not answer is simply not among the replies. `private` holds clients' private state where it is
    kept on this side; over a network it stays at the sites. sent, kept: names of weights that leave a client, and that
    stay on it; hooks: the Parts that say something at each hook. chance: where noise comes from that protects. remarks: what
    a user should know of how clients train, known after the first round. resized: from here on fewer clients train side by
    side, after the device's memory was full; returns how many, 0 where there can be no fewer.
    """

    device: torch.device
    sent: tuple[str, ...]
    kept: frozenset[str]
    hooks: dict[str, list[Part]]
    chance: Chance

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]: ...

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]: ...

    def remarks(self) -> list[tuple[str, str]]: ...

    def resized(self) -> int: ...

    def close(self) -> None: ...


class Scoring(Protocol):
    """Turns a state into metric rows; `last` after the last round, when every client's own row is wanted."""

    def rows(self, t: int, start: Start, store: Store, last: bool) -> list[dict[str, Any]]: ...
