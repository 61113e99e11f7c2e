"""Replies out of all proportion: finite, of the right shape, and enough to wreck the model for everybody.

A site's change d_k of the model is measured by its norm over all trained weights together, and over all statistics of batch normalisation
together; for what a Part shares, the norm of all its tensors. It is compared with the median of the other sites', as it is
and by local step, because a site with many samples moves further and one with few moves further a step.

    r_k = min(|d_k| / median_{j != k} |d_j|,  (|d_k| / S_k) / median_{j != k} (|d_j| / S_j))      S local steps
A reply is refused if r_k > 10 and |d_k| > max(|w|, 1). Of two sites either may be the odd one out, so |d_k| must be a
hundred times that, and what Parts share is not compared. Shared sums grow with the samples: for them r_k > 1,000,000.
Inputs and features do not: of them the root mean square is compared, whatever the steps, and r_k > 1,000 is refused.

Letters: K replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from torch import Tensor

from unskew.core.replies import Reply
from unskew.core.trees import Weights, flat

MOST = 10.0
"""How many times as far as the others a site may change the model."""
MOST_SHARED, MOST_VALUES = 1e6, 1e3
MOST_STEPS = 1000
"""How many times as many local steps as the others a site is believed to take."""
ALONE = 100.0
"""How many times its norm one of two sites may change the model by."""
REMEMBERED = 5
"""Rounds in which whoever spoiled the model is looked for."""


@dataclass(frozen=True)
class Change:
    """What one client's reply does to the model. ratio: r_k. text: the change and the others', as part of a sentence."""

    client: int
    ratio: float
    refused: bool
    text: str


@dataclass
class Proportions:
    """Changes of the last rounds. shared: names of the trained weights; steps: by client, local steps of a round."""

    shared: Sequence[str]
    steps: Mapping[int, int]
    _rounds: deque[tuple[int, Change]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def check(
        self,
        t: int,
        start: Weights,
        replies: Sequence[Reply],
        received: Callable[[int], Weights] | None = None,
        of_samples: Collection[str] = (),
    ) -> list[Change]:
        """The replies to refuse. Remembers who changed the model most among the others.

        start: the model of all. replies: that passed the gate. received: the weights that a client was sent, where that is
        not the model of all; it has changed those. of_samples: Parts that share inputs or features of samples.
        """
        sent = {r.client: received(r.client) if received else start for r in replies}
        compared = self._compared(start, sent, replies, of_samples)
        changes = [change for what in compared for change in self._changes(replies, *what)]
        refused = {c.client: c for c in changes if c.refused}
        merged = [c for c in changes if c.client not in refused]
        if merged:
            self._rounds.append((t, max(merged, key=lambda c: c.ratio)))
        return list(refused.values())

    def suspect(self) -> tuple[int, Change] | None:
        """(round, change): of the last rounds, the one that was furthest out of proportion; None if none was."""
        t, change = max(self._rounds, key=lambda entry: entry[1].ratio, default=(0, None))
        return (t, change) if change and change.ratio > MOST else None

    def _compared(
        self, start: Weights, received: Mapping[int, Weights], replies: Sequence[Reply], of_samples: Collection[str]
    ) -> list[tuple[str, list[float], float, float]]:
        """(what, |d_K|, the most times as far, the norm above which that counts), for each quantity to compare."""
        if len(replies) < 2:
            return []
        sent = [n for n, w in replies[0].weights.items() if w.is_floating_point()]
        groups = {
            "the model's weights": [n for n in sent if n in self.shared],
            "the statistics of batch normalisation": [n for n in sent if n not in self.shared],
        }
        factor = ALONE if len(replies) == 2 else 1.0
        compared = [
            (what, [_norm(r.weights[n] - received[r.client][n] for n in names) for r in replies], MOST,
             factor * max(1.0, _norm(start[n] for n in names)))
            for what, names in groups.items() if names
        ]  # fmt: skip
        if len(replies) > 2:
            parts = sorted({part for r in replies for part in r.shares})
            for part in parts:
                if part in of_samples:
                    size_K = [_size(r, part) for r in replies]
                    compared.append((f"what '{part}' shares", size_K, MOST_VALUES, 1.0))
                else:
                    compared.append((f"what '{part}' shares", [_shared(r, part) for r in replies], MOST_SHARED, 1.0))
        return compared

    def _changes(
        self, replies: Sequence[Reply], what: str, d_K: list[float], most: float, least: float
    ) -> list[Change]:
        steps_K = [max(1, self.steps[r.client]) for r in replies]
        changes: list[Change] = []
        for k, reply in enumerate(replies):
            others = [j for j in range(len(replies)) if j != k]
            usual, usual_step = median(d_K[j] for j in others), median(d_K[j] / steps_K[j] for j in others)
            steps = min(steps_K[k], MOST_STEPS * median(steps_K[j] for j in others))
            ratio = _times(d_K[k], usual)
            if most != MOST_VALUES:
                ratio = min(ratio, _times(d_K[k] / steps, usual_step))
            measured = "root mean squares" if most == MOST_VALUES else "norms"
            text = f"it changes {what} by {d_K[k]:.3g}, the other sites by {usual:.3g} (median of {measured})"
            changes.append(Change(reply.client, ratio, ratio > most and d_K[k] > least, text))
        return changes


def _times(value: float, usual: float) -> float:
    return value / usual if usual else float("inf") if value else 1.0


def _shared(reply: Reply, part: str) -> float:
    return _norm(t for t in flat(reply.shares.get(part, {})).values() if t.is_floating_point())


def _size(reply: Reply, part: str) -> float:
    """The root mean square of all numbers that a Part shares; 0 for none."""
    count = sum(t.numel() for t in flat(reply.shares.get(part, {})).values() if t.is_floating_point())
    return _shared(reply, part) / max(1, count) ** 0.5


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(t.double().pow(2).sum()) for t in tensors) ** 0.5
