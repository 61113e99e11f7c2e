"""The exchange of a simulated run with secure aggregation: the server's side sees the sum of all replies, and no reply.

Masks cancel exactly, so none are drawn here: the sum has the bits that a network's has, and the run ends with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unskew.core import gate
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.record import Record
from unskew.engine.resolve import Run
from unskew.privacy.fixed_point import FixedPoint, shares_of_weight
from unskew.privacy.secure import LEAST, SecureAggregation

MOST_LOSS = 1e12
"""A client whose loss is larger than this, or no number, takes no part in the sum."""


@dataclass
class Summed:
    """The engine's Exchange around the trainer of a run, whose replies come out as sums. record: takes its events."""

    inner: Trainer
    run: Run
    secure: SecureAggregation
    record: Record

    def __post_init__(self) -> None:
        inner = self.inner
        self.device, self.sent, self.kept, self.hooks = inner.device, inner.sent, inner.kept, inner.hooks
        self.chance = inner.chance
        self.numbers = numbers_of(self.run.method, self.run.fed, self.secure, self.sent)

    def remarks(self) -> list[tuple[str, str]]:
        return self.inner.remarks()

    def resized(self) -> int:
        return self.inner.resized()

    def close(self) -> None:
        self.inner.close()

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """As many equal replies as clients have sound ones, whose sum is that of theirs; none of fewer than three."""
        replies, fed = self.inner.train(start, cohort, private), self.run.fed
        sound = []
        for reply in replies:
            if problem := unsound(reply, self.numbers.spec, fed.sizes):
                code, text = problem
                self.tell(start.t, code, f"{self.run.federation.name_of(reply.client)} round {start.t}: {text}")
            else:
                sound.append(reply)
        if len(sound) < LEAST:
            self.tell(start.t, "E321", too_few(start.t, len(sound), LEAST))
            return []
        p_K = shares_of_weight([r.size for r in sound], self.run.weighting, self.run.settings.cap)
        total_N = self.numbers.numbers(sound[0], start.weights, p_K[0])
        for reply, p in zip(sound[1:], p_K[1:]):
            total_N += self.numbers.numbers(reply, start.weights, p)
        if cut := self.numbers.cut(total_N):
            self.tell(start.t, "E322", were_cut(start.t, cut, len(sound), self.secure))
        return self.numbers.replies(total_N, start.weights, sound, sum(p_K))

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """Never called: a Part with an exchange of its own is refused before anything trains."""
        raise TypeError(f"'{part.name}' makes an exchange whose replies are not summed")

    def tell(self, t: int, code: str, text: str) -> None:
        self.record.add("events", [{"t": t, "code": code, "text": text}])


def numbers_of(method: Method, fed: Fed, secure: SecureAggregation, sent: Sequence[str]) -> FixedPoint:
    """How the replies of a run become whole numbers. sent: names of the weights that leave a client."""
    w, shares = fed.net.weights(), method.shares(fed)
    spec = gate.Spec(
        {n: tuple(w[n].shape) for n in sent}, {p: s for p, s in shares.items() if s}, {n: w[n].dtype for n in sent}
    )
    return FixedPoint(spec, secure.clip, secure.fraction(fed.clients), secure.bits)


def unsound(reply: Reply, spec: gate.Spec, sizes: Sequence[int] | np.ndarray[Any, Any]) -> tuple[str, str] | None:
    """Why a client takes no part in a sum, which it looks at itself, because nobody else can: a code and a sentence.

    It does what the server's gate does with single replies. sizes: registered training samples, by client.
    """
    loss = float(torch.as_tensor(reply.loss))
    if not math.isfinite(loss) or abs(loss) > MOST_LOSS:
        return "E301", f"the loss is no number up to {MOST_LOSS:g} in size. It takes no part in the sum."
    _, refused = gate.check([reply], spec, sizes)
    return (refused[0].code, f"{refused[0].text} It takes no part in the sum.") if refused else None


def too_few(t: int, there: int, needed: int) -> str:
    """The event of a round whose sum nobody may see."""
    return f"round {t}: {there} sound replies; a sum is opened over {needed} or more. Nothing was summed."


def were_cut(t: int, cut: str, clients: int, secure: SecureAggregation) -> str:
    """The event of a round in which numbers were cut. cut: how many, in words."""
    return f"round {t}: {cut} numbers of {clients} clients together were larger than clip={secure.clip:g} and were cut to it."
