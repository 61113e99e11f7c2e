"""Measures of a run: the interface of probes, the round that they read, and their results.

A probe reads features, weights and labels of the clients through a `RunInspector`, on the trainer's threads.
It does not change a bit of the run, and its results follow from the replies, the state and the record, so a
resumed run has equal ones. Numbers become rows of the scope "measure" in metrics.jsonl; matrices and pictures
of the last round go into measures.json. Letters: D features, N rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unskew.core.random_keys import numpy_key
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.records.record import Record
from unskew.records.rows import Row, scope_row
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation
from unskew.round.trainer import Trainer
from unskew.system.machine import one_core

MOST_ROWS = 2000
"""The most rows that are measured: a fixed random subset if there are more."""
WeightsOf = Callable[[Reply, Broadcast], Weights]
"""The choice of a client's weights: `RunInspector.trained_weights` or `RunInspector.held_weights`."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class RunInspector:
    """Read access to a run's models and data. client_names: one for each client."""

    def __init__(self, trainer: Trainer, scoring: Evaluation, record: Record, client_names: Sequence[str]):
        self.trainer, self.scoring, self.record, self.client_names = trainer, scoring, record, client_names

    def each(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The function's value for every item, in order, in a context in which models can run."""

        def one(item: Item) -> Answer:
            with self.trainer.evaluating():
                return function(item)

        return self.trainer.each(one, items)

    def trained_weights(self, reply: Reply, sent: Broadcast) -> Weights:
        """A client's weights after its last local step, before anything is merged."""
        return {**self.trainer.held_weights(sent, reply.private), **reply.weights}

    def held_weights(self, reply: Reply, after: Broadcast) -> Weights:
        """The global model as the client would hold it: with the weights it keeps."""
        return self.trainer.held_weights(after, reply.private)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        """The input of the head, [N, D]; only inside `each`."""
        return torch.cat(
            [self.trainer.net.run(w, piece)[1].flatten(1) for piece in x.split(self.scoring.piece)]
        )

    def training_features(
        self, k: int, w: Weights, start: Broadcast, most: int = MOST_ROWS
    ) -> tuple[Tensor, Tensor]:
        """(features [N, D], labels [N]) of at most `most` training rows of client k, as at test time."""
        client = self.trainer.client(k, start, "", w, {})
        b = client.sample(min(int(self.trainer.fed.sizes[k]), most), "measure")
        return self.features(w, b.x), b.y.argmax(1)

    def test_features(self, rows: np.ndarray, k: int, w: Weights, start: Broadcast) -> Tensor:
        """The features [N, D] of test rows as client k sees them; k = -1: no client."""
        x = self.scoring.x[torch.as_tensor(rows, device=self.trainer.device)]
        if self.scoring.own_inputs:
            x = self.trainer.prepared(x, self.trainer.client(k, start, "", w, {}), start)
        return self.features(w, x)

    def no_global_answers(self) -> str | None:
        """Why this run has no global model that predicts one class per sample, as the end of a sentence; None
        if it has."""
        if self.trainer.fed.task.name != "classification":
            return "it looks at one class for each sample"
        if self.trainer.keeps_model or not self.trainer.sent:
            return "clients keep weights of their own, so no global model answers"
        return None

    def rows_of(self, k: int) -> np.ndarray:
        """The test rows of client k, or of the global test set (-1)."""
        return np.arange(len(self.scoring.y)) if k < 0 else self.scoring.test[k]

    def test_outputs(self, rows: np.ndarray, k: int, start: Broadcast) -> Tensor:
        """The global model's outputs [N, C] for test rows as client k sees them, or no client (-1); only
        inside `each`."""
        scoring = self.scoring
        pieces = [rows[i : i + scoring.piece] for i in range(0, len(rows), scoring.piece)]
        return torch.cat([scoring.outputs_of(piece, k, start, {}, start.weights) for piece in pieces])

    def test_labels(self, rows: np.ndarray) -> Tensor:
        """The labels [N] on the trainer's device."""
        return torch.as_tensor(self.scoring.y[rows], device=self.trainer.device)

    def choice(self, rows: np.ndarray, most: int, *purpose: object) -> np.ndarray:
        """At most `most` of the rows, in their order; a random subset that is fixed for each purpose."""
        if len(rows) <= most:
            return rows
        return np.sort(
            numpy_key(self.trainer.fed.seed, "measure", *purpose).choice(rows, most, replace=False)
        )


MOST_CLIENTS = 50
"""The most clients of a cohort that are measured, in the order of ids; diversity and exposure measure all."""


@dataclass(frozen=True)
class RoundEnd:
    """The input of a probe after round t.

    last: whether it is the run's last round. sent: the broadcast of the round. after: the state after the
    round as a broadcast. replies: those that the gate accepted.
    """

    t: int
    last: bool
    sent: Broadcast
    after: Broadcast
    replies: Sequence[Reply]

    @property
    def some_replies(self) -> Sequence[Reply]:
        """At most MOST_CLIENTS of the replies."""
        return self.replies[:MOST_CLIENTS]


@dataclass(frozen=True)
class Measurement:
    """The result of a probe for a round.

    values: numbers by metric; non-finite ones are not recorded. picture: for measures.json, in JSON's types;
    empty except after the last round.
    """

    values: dict[str, float] = field(default_factory=dict[str, float])
    picture: dict[str, Any] = field(default_factory=dict[str, Any])


class Probe:
    """One measure of one run."""

    def __init__(self, lens: RunInspector):
        self.lens, self.trainer, self.fed = lens, lens.trainer, lens.trainer.fed

    def refuse(self) -> str | None:
        """Why this run cannot be measured, as the end of a sentence; None if it can. Called before the
        run."""
        return None

    def measure(self, end: RoundEnd) -> Measurement:
        """The numbers of this round, and after the last round the picture."""
        raise NotImplementedError


def mean(values: Sequence[float]) -> float:
    """Mean of the finite values; NaN if there are none."""
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan


SCOPE = "measure"


class Measures:
    """All probes of a run. The loop calls `remember` in each round, and `measure` when it evaluates."""

    def __init__(self, probes: Mapping[str, Probe]):
        self.probes = probes
        self._round: tuple[Broadcast, Sequence[Reply]] | None = None

    def remember(self, sent: Broadcast, replies: Sequence[Reply]) -> None:
        """Store the broadcast and the replies of a round for `measure`."""
        self._round = sent, replies

    def measure(self, t: int, after: Broadcast, last: bool) -> tuple[list[Row], dict[str, Any]]:
        """(rows for metrics.jsonl, pictures by measure) of the last round that was passed to `remember`."""
        assert self._round is not None, "call remember before measure"
        end = RoundEnd(t, last, self._round[0], after, self._round[1])
        with one_core():
            measured = {name: probe.measure(end) for name, probe in self.probes.items()}
        rows = [row for m in measured.values() for row in _rows(t, m.values)]
        return rows, {name: m.picture for name, m in measured.items() if m.picture}


def _rows(t: int, values: Mapping[str, float]) -> list[Row]:
    return [
        scope_row(t, SCOPE, name, float(f"{value:.7g}"))
        for name, value in values.items()
        if math.isfinite(value)
    ]
