"""Confusion matrices of the global model, on the global test set and at each client.

Letters: C classes, K clients, N samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.round.probes import Measurement, Probe, RoundEnd


def confusion(guess_N: Tensor, y_N: Tensor, classes: int) -> Tensor:
    """The number of samples by true class (rows) and predicted class (columns), int64 [C, C]."""
    return torch.bincount(y_N * classes + guess_N, minlength=classes * classes).reshape(classes, classes)


MOST_CLASSES, MOST_SITES = 40, 12
"""Maximum size of a readable table, and number of clients shown: those with the most test samples."""


class Confusion(Probe):
    """After the last round: counts by true and predicted class, for all test samples and for those of each
    client."""

    def refuse(self) -> str | None:
        if self.fed.classes > MOST_CLASSES:
            return f"{self.fed.classes} classes make too large a table; at most {MOST_CLASSES}"
        return self.lens.no_global_answers()

    def measure(self, end: RoundEnd) -> Measurement:
        scoring = self.lens.scoring
        if not end.last or not len(scoring.y):
            return Measurement()

        def at(k: int) -> list[list[int]]:
            rows = self.lens.rows_of(k)
            guess_N = self.lens.test_outputs(rows, k, end.after).argmax(1)
            return confusion(guess_N, self.lens.test_labels(rows), self.fed.classes).tolist()

        largest = sorted(scoring.clients, key=lambda k: (-len(scoring.test[k]), k))[:MOST_SITES]
        tables = self.lens.each(at, [-1, *sorted(largest)])
        names = [self.lens.client_names[k] for k in sorted(largest)]
        return Measurement({}, {"all": tables[0], "names": names, "sites": tables[1:]})
