"""How probes look at a run: features, weights and labels of its clients, computed on the trainer's threads.

Letters: D features, N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from unskew.core.keys import numpy_key
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.record import Record
from unskew.engine.server.scores import Evaluation

MOST_ROWS = 2000
"""Of more rows than this a fixed random choice is looked at."""
WeightsOf = Callable[[Reply, Start], Weights]
"""Which weights of a client are meant: `Lens.trained_weights` or `Lens.held_weights`."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Lens:
    """Looks at a run's models and data. client_names: one for each client."""

    def __init__(self, trainer: Trainer, scoring: Evaluation, record: Record, client_names: Sequence[str]):
        self.trainer, self.scoring, self.record, self.client_names = trainer, scoring, record, client_names

    def each(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The function of every item, computed where a model can run; in the order of the items."""

        def one(item: Item) -> Answer:
            with self.trainer.evaluating():
                return function(item)

        return self.trainer.each(one, items)

    def trained_weights(self, reply: Reply, sent: Start) -> Weights:
        """A client's weights after its last local step, before anything is merged."""
        return {**self.trainer.held_weights(sent, reply.private), **reply.weights}

    def held_weights(self, reply: Reply, after: Start) -> Weights:
        """The global model as the client would hold it: with the weights it keeps."""
        return self.trainer.held_weights(after, reply.private)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        """[N, D], what the head receives; only inside `each`."""
        return torch.cat([self.trainer.net.run(w, piece)[1].flatten(1) for piece in x.split(self.scoring.piece)])

    def training_features(self, k: int, w: Weights, start: Start, most: int = MOST_ROWS) -> tuple[Tensor, Tensor]:
        """(features [N, D], labels [N]) of at most so many training rows of client k, seen as at test time."""
        client = self.trainer.client(k, start, "", w, {})
        b = client.sample(min(int(self.trainer.fed.sizes[k]), most), "measure")
        return self.features(w, b.x), b.y.argmax(1)

    def test_features(self, rows: np.ndarray, k: int, w: Weights, start: Start) -> Tensor:
        """[N, D], features of test rows as client k sees them; k = -1 stands for nobody."""
        x = self.scoring.x[torch.as_tensor(rows, device=self.trainer.device)]
        if self.scoring.own_inputs:
            x = self.trainer.prepared(x, self.trainer.client(k, start, "", w, {}), start)
        return self.features(w, x)

    def no_global_answers(self) -> str | None:
        """Why no global model answers for samples of classes in this run, as the end of a sentence; None if one does."""
        if self.trainer.fed.task.name != "classification":
            return "it looks at one class for each sample"
        if self.trainer.keeps_model or not self.trainer.sent:
            return "clients keep weights of their own, so no global model answers"
        return None

    def rows_of(self, k: int) -> np.ndarray:
        """The test rows of client k, or of the global test set (-1)."""
        return np.arange(len(self.scoring.y)) if k < 0 else self.scoring.test[k]

    def test_outputs(self, rows: np.ndarray, k: int, start: Start) -> Tensor:
        """[N, C], what the global model says of test rows as client k, or nobody (-1), sees them; only inside `each`."""
        scoring = self.scoring
        pieces = [rows[i : i + scoring.piece] for i in range(0, len(rows), scoring.piece)]
        return torch.cat([scoring.outputs_of(piece, k, start, {}, start.weights) for piece in pieces])

    def test_labels(self, rows: np.ndarray) -> Tensor:
        """[N], on the trainer's device."""
        return torch.as_tensor(self.scoring.y[rows], device=self.trainer.device)

    def choice(self, rows: np.ndarray, most: int, *purpose: object) -> np.ndarray:
        """At most so many of the rows, in their order: the same for the same purpose."""
        if len(rows) <= most:
            return rows
        return np.sort(numpy_key(self.trainer.fed.seed, "measure", *purpose).choice(rows, most, replace=False))
