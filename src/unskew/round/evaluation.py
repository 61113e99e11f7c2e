"""Scores of a round in three scopes: the global model on the global test set, the global model on each
client's test rows, and each client's own model on them.

If weights stay at clients, no client uses the global model: the second scope then uses each client's kept
weights, and the first is its mean over all their rows. Letters: C classes, K clients, N rows.
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
"""From client and metric to value; the first metric is the task's main one. Undefined metrics are left
out."""


def score_row(t: int, scope: str, metric: str, value: float, client: int | None = None, of: str = "") -> Row:
    """A metric row of round t with a rounded value: shares to six decimals, numbers to seven digits.

    client: None for a value of the whole scope. of: the score whose mean, worst or deviation the value is.
    """
    kept = round(float(value), 6) if kind(of or metric).share else float(f"{value:.7g}")
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": kept}


def client_rows(t: int, scope: str, scores: Scores) -> list[Row]:
    """The rows of every metric of every client."""
    return [score_row(t, scope, m, v, k) for k, values in scores.items() for m, v in values.items()]


def means(scores: Scores) -> dict[str, float]:
    """The mean of each metric over the clients that have it."""
    names = dict.fromkeys(m for values in scores.values() for m in values)
    return {m: float(np.mean([v[m] for v in scores.values() if m in v])) for m in names}


def pool(fed: Fed, scores: Scores, sizes: Mapping[int, int]) -> dict[str, float]:
    """The task's scores over all clients' test rows, each row scored by its client's model.

    sizes: each client's number of test rows. Requested metrics are left out, because their values over all
    rows do not follow from the clients' values.
    """
    n = np.array([sizes[k] for k in scores], dtype=float)
    return fed.task.pooled(
        (n / n.sum()).tolist(), [without_requested(fed, values) for values in scores.values()]
    )


def without_requested(fed: Fed, scores: Mapping[str, float]) -> dict[str, float]:
    """The scores without the requested metrics."""
    named = {metric.key for metric in fed.metrics}
    return {m: v for m, v in scores.items() if m not in named}


def summary_rows(t: int, scope: str, scores: Scores) -> list[Row]:
    """Rows with the mean, worst and standard deviation over clients of the main metric, and the means of the
    others."""
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
    """Predictions of N rows. guess: the task's predictions [N, ...]. p: probabilities, float32 [N, C], or [N,
    T] of the labels of tokens; None if no metric reads them."""

    guess: np.ndarray
    p: np.ndarray | None

    def of(self, rows: np.ndarray) -> Predictions:
        """The predictions of some of the rows."""
        return Predictions(self.guess[rows], None if self.p is None else self.p[rows])


def predictions_of(z: Tensor, y: np.ndarray, fed: Fed) -> Predictions:
    """The predictions from the model's outputs z for rows with labels y. Probabilities are only computed for
    metrics that read them; for tokens only those of the labels, because vocabularies are large."""
    if not reads_probabilities(fed):
        return Predictions(fed.task.predictions(z).cpu().numpy(), None)
    task = fed.task
    if isinstance(task, TokenLabels):
        p = task.probabilities(z, torch.as_tensor(y, device=z.device))
    else:
        p = z.softmax(1)
    return Predictions(task.predictions(z).cpu().numpy(), p.cpu().numpy())


def concatenate(pieces: Sequence[Predictions]) -> Predictions:
    """The predictions of all pieces, of which there is at least one, in order."""
    p = [piece.p for piece in pieces if piece.p is not None]
    return Predictions(np.concatenate([piece.guess for piece in pieces]), np.concatenate(p) if p else None)


def reads_probabilities(fed: Fed) -> bool:
    """Whether a requested metric reads probabilities."""
    return any(metric.reads_probabilities for metric in fed.metrics)


def requested_scores(fed: Fed, y: np.ndarray, answers: Predictions) -> dict[str, float]:
    """The requested metrics of at least one row, without undefined ones."""
    values = {metric.key: metric.value(y, answers.guess, answers.p) for metric in fed.metrics}
    return {name: value for name, value in values.items() if value is not None}


PER_CLIENT = 200
"""With more clients than this, rows of single clients are only written after the last round."""
PIECE, PIECE_ON_GPU = (125, 1 << 21), (4000, 1 << 24)
"""The most rows and input values of a pass; a segmentation model has many activations of its input's size."""


class Evaluation:
    """Scores of one run's models on its test rows."""

    def __init__(
        self, trainer: Trainer, x_test: torch.Tensor, y_test: np.ndarray, test: Index | Sequence[np.ndarray]
    ):
        self.trainer, self.x, self.y, self.test = trainer, x_test, y_test, test
        self.clients = [k for k in range(len(test)) if len(test[k])] if len(test) <= 100_000 else []
        """Clients with test rows; none beyond 100,000 clients, whose few rows would say nothing."""
        self.own_inputs = bool(trainer.hooks["evaluate_with"])
        self.apart = self.own_inputs or (trainer.fed.natural and reads_probabilities(trainer.fed))
        """Whether each client's rows have a pass of their own, as at a site: the last bits of probabilities
        depend on the other rows of a pass."""
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
        if right:  # no client uses the global model, so every row is scored by its client's model
            scores = pool(self.trainer.fed, right, {k: len(self.test[k]) for k in right})
        else:
            scores, right = self._global(start)
            if self.trainer.keeps_model:  # before round 1; later rounds have no such value
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
        """The predictions of every client's test rows, with its own statistics."""
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
        """The predictions of many rows, in fixed pieces, which the workers share."""
        return concatenate(
            self.trainer.each(lambda piece: self._predict(piece, k, start, private), self._pieces(rows))
        )

    def _pieces(self, rows: np.ndarray) -> list[np.ndarray]:
        return [rows[i : i + self.piece] for i in range(0, len(rows), self.piece)]

    def _predict(
        self, rows: np.ndarray, k: int, start: Broadcast, private: Tree, own: bool = False
    ) -> Predictions:
        """The predictions of rows for client k. own: with the weights that a Part's `personalise` returns."""
        trainer, start = self.trainer, start.to(k)
        with trainer.evaluating():
            w = self.weights_of(k, start, private, own)
            return concatenate([self._answers(piece, k, start, private, w) for piece in self._pieces(rows)])

    def weights_of(self, k: int, start: Broadcast, private: Tree, own: bool) -> Weights:
        """The weights that client k holds; own: after a Part's `personalise`."""
        start = start.to(k)
        w = self.trainer.held_weights(start, private)
        for p in self.own_weights if own and self.trainer.fed.sizes[k] else ():
            w = p.personalise(w, self.trainer.client(k, start, p.name, w, private))
        return w

    def score_at(self, k: int, start: Broadcast, w: Weights) -> float:
        """The task's main score of these weights on client k's test rows. Call it in `Clients.evaluating`."""
        guess = concatenate(
            [self._answers(piece, k, start, {}, w) for piece in self._pieces(self.test[k])]
        ).guess
        scores = self.task.client_scores(guess, self.y[self.test[k]], self.trainer.fed.classes)
        return scores[self.task.main_score]

    def outputs(self, k: int, start: Broadcast, private: Tree, own: bool = False) -> torch.Tensor:
        """The model's outputs [N, C, ...] for all rows as client k sees them, or no client (-1).

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
        """As `outputs`, for a few rows and any weights. Call it in `Clients.evaluating`."""
        trainer = self.trainer
        x = self.x[torch.as_tensor(rows, device=trainer.device)]
        if self.own_inputs:
            x = trainer.prepared(x, self._seen(k, start, "", w, private), start)
        z, h = trainer.net.run(w, x)
        for p in trainer.hooks["scores"]:
            z = p.scores(z, h, replace_fields(self._seen(k, start, p.name, w, private), inputs=x))
        return z

    def _seen(self, k: int, start: Broadcast, part: str, w: Weights, private: Tree) -> Client:
        """The client for the hook `scores`: without samples if a Part protects them."""
        return without_samples(self.trainer, self.trainer.client(k, start, part, w, private))

    def _scores(self, rows: np.ndarray, answers: Predictions) -> dict[str, float]:
        fed, y = self.trainer.fed, self.y[rows]
        return self.task.scores(answers.guess, y, fed.classes) | requested_scores(fed, y, answers)

    def _brief(self, k: int, answers: Predictions) -> dict[str, float]:
        fed, y = self.trainer.fed, self.y[self.test[k]]
        return self.task.client_scores(answers.guess, y, fed.classes) | requested_scores(fed, y, answers)
