"""Scores of a round in three scopes: the global model on the global test set, on each client's test rows, and
the client's own.

Scopes are never mixed. Where weights stay at clients, no client uses the global model by itself: the second
scope then uses each client's kept weights, and the first is its mean over all their rows. Letters: C classes,
K clients, N rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import Client, Fed, replace_fields
from unskew.core.trees import Tree, Weights
from unskew.data.clients.partition import Index
from unskew.records.private_state import Store
from unskew.round.clients import Broadcast
from unskew.round.sample_privacy import without_samples
from unskew.round.trainer import Trainer
from unskew.scores import kind
from unskew.tasks.task import TokenLabels

Row = dict[str, Any]
Scores = dict[int, dict[str, float]]
"""client -> metric -> value; the first metric is the task's main one. Metrics that are undefined at a client
are left out."""


def score_row(t: int, scope: str, metric: str, value: float, client: int | None = None, of: str = "") -> Row:
    """One value of round t, rounded: shares to six decimals, numbers to seven digits.

    client: whose it is; None for a whole scope's. of: the score of which the value is a mean or the like.
    """
    kept = round(float(value), 6) if kind(of or metric).share else float(f"{value:.7g}")
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": kept}


def client_rows(t: int, scope: str, scores: Scores) -> list[Row]:
    """Every metric of every client."""
    return [score_row(t, scope, m, v, k) for k, values in scores.items() for m, v in values.items()]


def means(scores: Scores) -> dict[str, float]:
    """metric -> its mean over the clients that have it."""
    names = dict.fromkeys(m for values in scores.values() for m in values)
    return {m: float(np.mean([v[m] for v in scores.values() if m in v])) for m in names}


def pool(fed: Fed, scores: Scores, sizes: Mapping[int, int]) -> dict[str, float]:
    """metric -> its value over all clients' test rows. sizes: how many each client has.

    The same quantity as a global model's score on all rows, where each row is scored by the model of its own
    client. Without the metrics that were asked for beside the task's own: those of all rows do not follow
    from each client's.
    """
    n = np.array([sizes[k] for k in scores], dtype=float)
    return fed.task.pooled(
        (n / n.sum()).tolist(), [without_requested(fed, values) for values in scores.values()]
    )


def without_requested(fed: Fed, scores: Mapping[str, float]) -> dict[str, float]:
    """The scores but for the metrics that were asked for."""
    named = {metric.key for metric in fed.metrics}
    return {m: v for m, v in scores.items() if m not in named}


def summary_rows(t: int, scope: str, scores: Scores) -> list[Row]:
    """Mean, worst and deviation over clients of the main metric; of the others the mean, under their own
    names."""
    if not scores:
        return []
    main, *others = means(scores).items()
    v = np.array([values[main[0]] for values in scores.values()])
    worst = kind(main[0]).worst(v.tolist())
    summary = (("mean", v.mean()), ("worst", worst), ("std", v.std()))
    rows = [score_row(t, scope, m, x, of=main[0]) for m, x in summary]
    return rows + [score_row(t, scope, m, x) for m, x in others]


@dataclass(frozen=True)
class Predictions:
    """guess: predictions [N, ...], as the task makes them. p: probabilities, float32 [N, C], or [N, T] of
    tokens' own labels; None where nobody reads them."""

    guess: np.ndarray
    p: np.ndarray | None

    def of(self, rows: np.ndarray) -> Predictions:
        """Those of some of the rows."""
        return Predictions(self.guess[rows], None if self.p is None else self.p[rows])


def predictions_of(z: Tensor, y: np.ndarray, fed: Fed) -> Predictions:
    """From the model's outputs for rows with the labels y. Probabilities are computed, and leave the device,
    only for metrics that read them; of tokens those of the labels alone, because a vocabulary has very
    many."""
    if not reads_probabilities(fed):
        return Predictions(fed.task.predictions(z).cpu().numpy(), None)
    task = fed.task
    read = (
        task.probabilities(z, torch.as_tensor(y, device=z.device))
        if isinstance(task, TokenLabels)
        else z.softmax(1)
    )
    p = read.cpu().numpy()
    return Predictions(fed.task.predictions(z).cpu().numpy(), p)


def concatenate(pieces: Sequence[Predictions]) -> Predictions:
    """One after another; at least one piece."""
    p = [piece.p for piece in pieces if piece.p is not None]
    return Predictions(np.concatenate([piece.guess for piece in pieces]), np.concatenate(p) if p else None)


def reads_probabilities(fed: Fed) -> bool:
    """Whether a metric that was asked for does."""
    return any(metric.reads_probabilities for metric in fed.metrics)


def requested_scores(fed: Fed, y: np.ndarray, answers: Predictions) -> dict[str, float]:
    """The metrics that were asked for, of at least one row; without those that are undefined."""
    values = {metric.key: metric.value(y, answers.guess, answers.p) for metric in fed.metrics}
    return {name: value for name, value in values.items() if value is not None}


PER_CLIENT = 200
"""With more clients than this, their own rows are written after the last round only."""
PIECE, PIECE_ON_GPU = (500, 1 << 21), (4000, 1 << 24)
"""A pass sees at most so many rows, and so many input values: a model for pixels keeps many maps of its
input's size."""


class Evaluation:
    """Scores of one run's models on its test rows."""

    def __init__(
        self, trainer: Trainer, x_test: torch.Tensor, y_test: np.ndarray, test: Index | Sequence[np.ndarray]
    ):
        self.trainer, self.x, self.y, self.test = trainer, x_test, y_test, test
        self.clients = [k for k in range(len(test)) if len(test[k])] if len(test) <= 100_000 else []
        """Clients with test rows; beyond 100,000 clients a handful of rows each says nothing."""
        self.own_inputs = bool(trainer.hooks["evaluate_with"])
        self.apart = self.own_inputs or (trainer.fed.natural and reads_probabilities(trainer.fed))
        """Whether each client's rows are passed through the model by themselves, as a site passes its own:
        the last bits of probabilities depend on what else is in a pass."""
        self.own_weights = [p for p in trainer.method.parts if p.personal]
        rows, values = PIECE if trainer.device.type == "cpu" else PIECE_ON_GPU
        self.task, self.piece = trainer.fed.task, max(1, min(rows, values // math.prod(trainer.fed.shape)))

    def rows(self, t: int, start: Broadcast, store: Store, last: bool) -> list[Row]:
        """All metric rows of round t."""
        if not len(self.y):
            return []
        if not self.trainer.sent:  # nothing is shared, so there is no global model to score
            own = self._held(start, store, personal=True)
            return summary_rows(t, "personal@client", own) + client_rows(t, "personal@client", own)
        right = self._held(start, store) if self.trainer.keeps_model else {}
        if (
            right
        ):  # no client uses the server's weights alone, so every row is scored by its own client's model
            scores = pool(self.trainer.fed, right, {k: len(self.test[k]) for k in right})
        else:
            scores, right = self._global(start)
            if self.trainer.keeps_model:  # before anybody kept anything: later rounds have no such value
                scores = without_requested(self.trainer.fed, scores)
        own = self._held(start, store, personal=True) if self.own_weights else right
        rows = [score_row(t, "global", m, v) for m, v in scores.items()]
        for scope, values in (("global@client", right), ("personal@client", own)):
            rows += summary_rows(t, scope, values)
            if last or (len(values) <= PER_CLIENT and (scope == "global@client" or own is not right)):
                rows += client_rows(t, scope, values)
        return rows

    def _global(self, start: Broadcast) -> tuple[dict[str, float], Scores]:
        """The global model's scores on all test rows, and on each client's."""
        by_client = self._by_client(start) if self.apart else {}
        if self.trainer.fed.natural and by_client:
            rows = np.concatenate([self.test[k] for k in self.clients])
            answers = concatenate([by_client[k] for k in self.clients])
        else:
            rows = np.arange(len(self.y))
            answers = self._whole(rows, -1, start, {})
        own = by_client or {k: answers.of(self.test[k]) for k in self.clients}
        return self._scores(rows, answers), {k: self._brief(k, own[k]) for k in self.clients}

    def _by_client(self, start: Broadcast) -> dict[int, Predictions]:
        """Every client's test rows by themselves, seen with its own statistics."""
        answers = self.trainer.each(lambda k: self._predict(self.test[k], k, start, {}), self.clients)
        return dict(zip(self.clients, answers))

    def _held(self, start: Broadcast, store: Store, personal: bool = False) -> Scores:
        """Scores of clients with the weights they keep, of those that have taken part.

        personal: also with the weights that Parts make for a client.
        """
        with_tests = [k for k in (store.known() if self.trainer.kept else self.clients) if len(self.test[k])]

        def score(k: int) -> dict[str, float]:
            private = store.fetch([k]).get(k, {})
            return self.client_scores(k, start, private, own=personal)

        return dict(zip(with_tests, self.trainer.each(score, with_tests)))

    def client_scores(self, k: int, start: Broadcast, private: Tree, own: bool = False) -> dict[str, float]:
        """Client k's scores on its own test rows, by metric.

        private: its private state; own: with the weights that Parts make for this client, where a Part makes
        such.
        """
        return self._brief(k, self._predict(self.test[k], k, start, private, own))

    def _whole(self, rows: np.ndarray, k: int, start: Broadcast, private: Tree) -> Predictions:
        """What is said of many rows, in fixed pieces shared out over the workers."""
        return concatenate(
            self.trainer.each(lambda piece: self._predict(piece, k, start, private), self._pieces(rows))
        )

    def _pieces(self, rows: np.ndarray) -> list[np.ndarray]:
        return [rows[i : i + self.piece] for i in range(0, len(rows), self.piece)]

    def _predict(
        self, rows: np.ndarray, k: int, start: Broadcast, private: Tree, own: bool = False
    ) -> Predictions:
        """own: with the weights that Parts make for this client, where one does."""
        trainer, start = self.trainer, start.to(k)
        with trainer.evaluating():
            w = self.weights_of(k, start, private, own)
            return concatenate([self._answers(piece, k, start, private, w) for piece in self._pieces(rows)])

    def weights_of(self, k: int, start: Broadcast, private: Tree, own: bool) -> Weights:
        """The weights that client k holds; own: as Parts make them for this client."""
        start = start.to(k)
        w = self.trainer.held_weights(start, private)
        for p in self.own_weights if own and self.trainer.fed.sizes[k] else ():
            w = p.personalise(w, self.trainer.client(k, start, p.name, w, private))
        return w

    def score_at(self, k: int, start: Broadcast, w: Weights) -> float:
        """The task's main score of any weights on client k's test rows, as client k sees them; where a model
        can run."""
        guess = concatenate(
            [self._answers(piece, k, start, {}, w) for piece in self._pieces(self.test[k])]
        ).guess
        scores = self.task.client_scores(guess, self.y[self.test[k]], self.trainer.fed.classes)
        return scores[self.task.main_score]

    def outputs(self, k: int, start: Broadcast, private: Tree, own: bool = False) -> torch.Tensor:
        """What predictions are read from, [N, C, ...], for all rows as client k, or nobody (-1), sees them.

        private, own: as for `client_scores`.
        """
        with self.trainer.evaluating():
            start = start.to(k)
            w = self.weights_of(k, start, private, own)
            pieces = self._pieces(np.arange(len(self.y)))
            return torch.cat([self.outputs_of(piece, k, start, private, w) for piece in pieces])

    def _answers(self, rows: np.ndarray, k: int, start: Broadcast, private: Tree, w: Weights) -> Predictions:
        return predictions_of(self.outputs_of(rows, k, start, private, w), self.y[rows], self.trainer.fed)

    def outputs_of(
        self, rows: np.ndarray, k: int, start: Broadcast, private: Tree, w: Weights
    ) -> torch.Tensor:
        """As `outputs`, of a few rows and with any weights; where a model can run."""
        trainer = self.trainer
        x = self.x[torch.as_tensor(rows, device=trainer.device)]
        if self.own_inputs:
            x = trainer.prepared(x, self._seen(k, start, "", w, private), start)
        z, h = trainer.net.run(w, x)
        for p in trainer.hooks["scores"]:
            z = p.scores(z, h, replace_fields(self._seen(k, start, p.name, w, private), inputs=x))
        return z

    def _seen(self, k: int, start: Broadcast, part: str, w: Weights, private: Tree) -> Client:
        """The client as hooks see it that make scores: without samples where a proof covers them."""
        return without_samples(self.trainer, self.trainer.client(k, start, part, w, private))

    def _scores(self, rows: np.ndarray, answers: Predictions) -> dict[str, float]:
        fed, y = self.trainer.fed, self.y[rows]
        return self.task.scores(answers.guess, y, fed.classes) | requested_scores(fed, y, answers)

    def _brief(self, k: int, answers: Predictions) -> dict[str, float]:
        fed, y = self.trainer.fed, self.y[self.test[k]]
        return self.task.client_scores(answers.guess, y, fed.classes) | requested_scores(fed, y, answers)
