"""`Exchange`, the loop's interface to the clients: the trainer of this process, or a network of sites.

`SecureSums` simulates secure aggregation: the server sees the sum of all replies and no single reply. Masks
cancel exactly, so none are drawn: the sum equals the sum over a network to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from unskew.core import gate
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.privacy.fixed_point import FixedPoint, shares_of_weight
from unskew.privacy.secure_aggregation import LEAST_SITES, SecureAggregation
from unskew.records.private_state import Store
from unskew.records.record import Record
from unskew.round.clients import Broadcast
from unskew.round.randomness import RandomSource
from unskew.round.run import Run
from unskew.round.trainer import Trainer


class Exchange(Protocol):
    """Sends a broadcast to clients and returns their replies, in the order of ids.

    Clients that do not answer are not among the replies. sent, kept: names of weights that leave a client,
    and that stay on it. hooks: the Parts that define each hook. chance: the source of noise that protects.
    """

    device: torch.device
    sent: tuple[str, ...]
    kept: frozenset[str]
    hooks: dict[str, list[Part]]
    chance: RandomSource

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """The replies of one local update of the clients in the cohort. private: the clients' private state,
        unless it stays at sites."""
        ...

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The replies of these clients to a trip."""
        ...

    def remarks(self) -> list[tuple[str, str]]:
        """Remarks for the user on how clients train, as (code, text), known after the first round."""
        ...

    def close(self) -> None:
        """End the exchange and its threads or processes."""
        ...


class Scoring(Protocol):
    """Scores states."""

    def rows(self, t: int, start: Broadcast, store: Store, last: bool) -> list[dict[str, Any]]:
        """The metric rows of a state, from what it broadcasts. last: include a row for every client."""
        ...


MOST_LOSS = 1e12
"""A client whose loss is larger than this, or not a number, takes no part in the sum."""


@dataclass
class SecureSums:
    """An Exchange around a trainer that returns sums of replies. record: for its events."""

    inner: Trainer
    run: Run
    secure: SecureAggregation
    record: Record

    def __post_init__(self) -> None:
        inner = self.inner
        self.device, self.sent, self.kept, self.hooks = inner.device, inner.sent, inner.kept, inner.hooks
        self.chance = inner.chance
        self.numbers = fixed_point_of(self.run.method, self.run.fed, self.secure, self.sent)

    def remarks(self) -> list[tuple[str, str]]:
        return self.inner.remarks()

    def close(self) -> None:
        self.inner.close()

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """As many equal replies as there are valid ones, with the same sum; none if fewer than three clients
        have valid replies."""
        replies, fed = self.inner.train(start, cohort, private), self.run.fed
        sound = []
        for reply in replies:
            if problem := reply_problem(reply, self.numbers.spec, fed.sizes):
                code, text = problem
                self.tell(
                    start.t, code, f"{self.run.federation.name_of(reply.client)} round {start.t}: {text}"
                )
            else:
                sound.append(reply)
        if len(sound) < LEAST_SITES:
            self.tell(start.t, "E309", too_few_event(start.t, len(sound), LEAST_SITES))
            return []
        p_K = shares_of_weight([r.size for r in sound], self.run.weighting, self.run.settings.cap)
        total_N = self.numbers.numbers(sound[0], start.weights, p_K[0])
        for reply, p in zip(sound[1:], p_K[1:]):
            total_N += self.numbers.numbers(reply, start.weights, p)
        if cut := self.numbers.cut(total_N):
            self.tell(start.t, "E322", clipping_event(start.t, cut, len(sound), self.secure))
        return self.numbers.replies(total_N, start.weights, sound, sum(p_K))

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """Raises TypeError: a Part with trips is refused before anything trains."""
        raise TypeError(f"'{part.name}' makes an exchange whose replies are not summed")

    def tell(self, t: int, code: str, text: str) -> None:
        self.record.add("events", [{"t": t, "code": code, "text": text}])


def fixed_point_of(method: Method, fed: Fed, secure: SecureAggregation, sent: Sequence[str]) -> FixedPoint:
    """The fixed-point form of a run's replies. sent: names of the weights that leave a client."""
    w, shares = fed.net.weights(), method.shares(fed)
    spec = gate.Spec(
        {n: tuple(w[n].shape) for n in sent},
        {p: s for p, s in shares.items() if s},
        {n: w[n].dtype for n in sent},
    )
    return FixedPoint(spec, secure.clip, secure.fraction(fed.clients), secure.bits)


def reply_problem(
    reply: Reply, spec: gate.Spec, sizes: Sequence[int] | np.ndarray[Any, Any]
) -> tuple[str, str] | None:
    """Why a client's reply is not added to the sum, as (code, sentence); None if it is.

    The client checks its own reply, as the gate would, because the server sees only the sum. sizes:
    registered training samples, by client.
    """
    loss = float(torch.as_tensor(reply.loss))
    if not math.isfinite(loss) or abs(loss) > MOST_LOSS:
        return "E301", f"the loss is no number up to {MOST_LOSS:g} in size. It takes no part in the sum."
    _, refused = gate.check([reply], spec, sizes)
    return (refused[0].code, f"{refused[0].text} It takes no part in the sum.") if refused else None


def too_few_event(t: int, there: int, needed: int) -> str:
    """The text of the event of a round with too few replies for a sum."""
    return f"round {t}: {there} sound replies; a sum is opened over {needed} or more. Nothing was summed."


def clipping_event(t: int, cut: str, clients: int, secure: SecureAggregation) -> str:
    """The text of the event of a round in which numbers were clipped. cut: their number, in words."""
    return (
        f"round {t}: {cut} numbers of {clients} clients together were larger than clip={secure.clip:g} and"
        " were cut to it."
    )
