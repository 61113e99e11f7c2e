"""An estimate of the processor time of runs, from a few timed steps of each model."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import numpy as np

from unskew import data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.random_keys import numpy_key
from unskew.data.samples.dataset import Dataset
from unskew.diagnosis.skews import absence
from unskew.report.analysis.number_formats import clock
from unskew.report.method_profile import costs
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import dataset_of, parts_of, resolve

SCORING_COST = 1 / 3
"""The cost of scoring a sample as a multiple of training on it: a forward pass without a backward pass."""


def duration_text(runs: Collection[Settings], seeds: int = 1) -> str:
    """The processor time of all runs with this number of seeds, in words.

    Other processes on the machine change the time until runs end, and leave this figure nearly as it is.
    """
    seconds = seeds * sum(_seconds(run, _dataset(run.data)) for run in runs)
    return f"About {clock(seconds)} of one processor"


@lru_cache(4)
def _dataset(name: str) -> Dataset:
    return dataset_of(Settings(data=name))


def _seconds(settings: Settings, dataset: Dataset) -> float:
    index = data.partition(
        settings.skew,
        dataset.y,
        settings.clients,
        numpy_key(settings.seed_of_partition, "partition"),
        columns=dataset.columns,
        samples=settings.samples,
    )
    samples, clients = len(index.rows), len(index)
    per_sample = _per_sample(
        settings.data, settings.model, settings.loss, min(settings.batch, max(1, samples // clients))
    )
    answering = 1 - absence(settings.availability, clients, settings.seed)
    trained = samples * answering * settings.passes
    scored = len(dataset.y_test) * settings.rounds / settings.eval_every
    names = [part.name for part in parts_of(settings.method).parts]
    cost = math.prod(costs()[name].computing for name in names if name in costs())
    return per_sample * (trained * cost + scored * SCORING_COST)


@lru_cache(None)
def _per_sample(name: str, model: str, loss: Any, batch: int) -> float:
    """Processor seconds per sample in the cheapest of three epochs of four clients with four batches each;
    the first epoch warms up and does not count."""
    dataset, n = _dataset(name), 4 * batch
    rows = np.arange(4 * n) % len(dataset.y)
    x, y = dataset.x[rows], dataset.y[rows]
    sample = data.arrays(x, y, x[:1], y[:1], classes=dataset.classes, layout="channels first")
    federation = data.build(sample, "iid", 4, np.random.default_rng(0), np.random.default_rng(1))
    step = Settings(model=model, loss=loss, batch=batch, epochs=1, clients=4, rounds=1, workers=1)
    loop = loop_of(resolve(step, federation, Method()))
    try:
        start = loop.down(loop.begin(), 1)
        times = [time.process_time()]
        for _ in range(4):
            loop.trainer.train(start, [0, 1, 2, 3], {})
            times.append(time.process_time())
        return float(np.diff(times)[1:].min()) / (4 * n)
    finally:
        loop.trainer.close()
