"""A run's measures: what the setting `measure` names, taken at evaluated rounds from the round's own replies.

Probes look and never touch: a measured run ends with the bits of one that is not. Their numbers become rows of the
scope "measure" in metrics.jsonl; matrices and pictures of the last round go into measures.json. Everything follows
from the replies, the state and the record, so a resumed run measures the same.
Letters: B batch, C classes, D features, K clients, N rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.keys import numpy_key
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.engine import memory
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.record import Record, Row
from unskew.engine.server.scores import Evaluation

SCOPE = "measure"
MOST_CLIENTS = 50
"""Of a larger cohort the first so many, by id, are looked at; diversity and exposure see all."""
MOST_ROWS = 2000
"""Of more rows a fixed random choice of so many is looked at."""
Weigh = Callable[[Reply, Start], Weights]
"""Which weights of a client are meant."""


@dataclass(frozen=True)
class Seen:
    """What a probe may look at after round t.

    sent: what the round's clients were sent; now: the state after it, as it would be sent; replies: those that count.
    """

    t: int
    last: bool
    sent: Start
    now: Start
    replies: Sequence[Reply]

    @property
    def some(self) -> Sequence[Reply]:
        return self.replies[:MOST_CLIENTS]


class Lens:
    """Looks at a run's models and data, on the trainer's threads."""

    def __init__(self, trainer: Trainer, scoring: Evaluation, record: Record, names: Sequence[str]):
        self.of, self.scoring, self.record, self.names = trainer, scoring, record, names
        self.fed = trainer.fed

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply to every item where a model can run; results in the order of items."""

        def one(item: Any) -> Any:
            with self.of.evaluating():
                return function(item)

        return self.of.each(one, items)

    def local(self, reply: Reply, sent: Start) -> Weights:
        """A client's weights after its last local step, before anything is merged."""
        return {**self.of.held_weights(sent, reply.private), **reply.weights}

    def received(self, reply: Reply, now: Start) -> Weights:
        """The global model as the client would hold it: with the weights it keeps."""
        return self.of.held_weights(now, reply.private)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        """[N, D], what the head receives."""
        return torch.cat([self.of.net.run(w, piece)[1].flatten(1) for piece in x.split(self.scoring.piece)])

    def train(self, k: int, w: Weights, start: Start, most: int = MOST_ROWS) -> tuple[Tensor, Tensor]:
        """(features, labels) of a client's training rows, their inputs as at test time."""
        client = self.of.client(k, start, "", w, {})
        b = client.sample(min(int(self.fed.sizes[k]), most), "measure")
        return self.features(w, b.x), b.y.argmax(1)

    def unseen(self, rows: np.ndarray, k: int, w: Weights, start: Start) -> Tensor:
        """Features of test rows as client k sees them; k = -1 is nobody."""
        x = self.scoring.x[torch.as_tensor(rows, device=self.of.device)]
        if self.scoring.own_inputs:
            x = self.of.prepared(x, self.of.client(k, start, "", w, {}), start)
        return self.features(w, x)

    def unseen_labels(self, rows: np.ndarray) -> Tensor:
        return torch.as_tensor(self.scoring.y[rows], device=self.of.device)

    def chosen(self, rows: np.ndarray, most: int, *what: object) -> np.ndarray:
        """At most so many of the rows, the same at every call."""
        if len(rows) <= most:
            return rows
        return np.sort(numpy_key(self.fed.seed, "measure", *what).choice(rows, most, replace=False))


class Probe:
    """One measure. `refuse` says before anything runs why it cannot be taken; numbers that are not finite are left out."""

    def __init__(self, lens: Lens):
        self.lens, self.of, self.fed = lens, lens.of, lens.fed

    def refuse(self) -> str | None:
        return None

    def values(self, seen: Seen) -> dict[str, float]:
        """Numbers of this round, by name."""
        return {}

    def picture(self, seen: Seen) -> dict[str, Any]:
        """What is kept of the last round beside numbers, as JSON takes it; asked after `values`."""
        return {}


class Measures:
    """All probes of a run. The loop says what it `heard` in a round, and asks for `rows` where it evaluates."""

    def __init__(self, probes: dict[str, Probe]):
        self.probes = probes
        self._heard: tuple[Start, Sequence[Reply]] | None = None

    def heard(self, sent: Start, good: Sequence[Reply]) -> None:
        self._heard = sent, good

    def taken(self, t: int, now: Start, last: bool) -> tuple[list[Row], dict[str, Any]]:
        """(rows for metrics.jsonl, what measures.json holds: empty but for the last round)."""
        assert self._heard is not None
        seen = Seen(t, last, self._heard[0], now, self._heard[1])
        with memory.one_core():
            rows = [row for p in self.probes.values() for row in _rows(t, p.values(seen))]
            pictures = {n: p.picture(seen) for n, p in self.probes.items()} if last else {}
        return rows, {n: found for n, found in pictures.items() if found}


def _rows(t: int, values: dict[str, float]) -> list[Row]:
    return [
        {"t": t, "scope": SCOPE, "client": None, "metric": name, "value": round(value, 6)}
        for name, value in values.items()
        if math.isfinite(value)
    ]


def mean(values: Sequence[float]) -> float:
    """Of those that are finite; NaN without any."""
    kept = [v for v in values if math.isfinite(v)]
    return sum(kept) / len(kept) if kept else math.nan
