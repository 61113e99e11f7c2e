"""How long runs will take on this machine: one local step of each model is timed, the rest is counted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from functools import lru_cache

import numpy as np

from unskew import data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.engine.assemble import loop_of
from unskew.engine.resolve import parts_of, resolve
from unskew.engine.sources import dataset_of

COST = {
    "fedmix": 3.0,
    "flea": 1.8,
    "moon": 1.7,
    "fedbr": 2.2,
    "fedntd": 1.35,
    "fedgen_images": 2.0,
    "fedfa": 1.4,
    "rebafl": 1.3,
}
"""Roughly what a step with a Part costs as a multiple of FedAvg's; Parts that are not named cost about the same."""
SCORED = 1 / 3
"""What scoring a sample costs as a multiple of training on it: a forward pass without a backward pass."""


def seconds_for(runs: Collection[Settings], cores: int, seeds: int = 1) -> float:
    """Seconds until all runs are done with each of so many seeds, one run at a time on each core."""
    return seeds * sum(seconds(s, _dataset(s.data)) for s in runs) / min(cores, max(1, seeds * len(runs)))


@lru_cache(4)
def _dataset(name: str) -> Dataset:
    return dataset_of(Settings(data=name))


def seconds(settings: Settings, dataset: Dataset) -> float:
    """Seconds that one run takes on one core."""
    samples, clients = _samples(settings, dataset), _clients(settings, dataset)
    per_sample = _seconds_per_sample(settings, dataset, min(settings.batch, max(1, samples // clients)))
    trained = samples * _cohort(settings.availability) * settings.passes
    scored = len(dataset.y_test) * settings.rounds / settings.eval_every
    return per_sample * (trained * _cost(settings.method) + scored * SCORED)


def _samples(settings: Settings, dataset: Dataset) -> int:
    """Training samples of all clients together."""
    if settings.skew.startswith("pathological") and "x" in settings.skew:
        classes, _, each = settings.skew.partition(":")[2].partition("x")
        return settings.clients * int(classes) * int(each)
    return min(len(dataset.y), (settings.samples or 10**9) * settings.clients)


def _clients(settings: Settings, dataset: Dataset) -> int:
    column = "domain" if settings.skew == "domain" else settings.skew.partition("column:")[2]
    return len(np.unique(dataset.columns[column])) if column in dataset.columns else settings.clients


def _cost(method: str) -> float:
    """What a step of a method costs as a multiple of FedAvg's."""
    parts = parts_of(method).parts
    return math.prod(COST.get(part.name, 1.0) for part in parts)


def _cohort(availability: str) -> float:
    """The share of clients that trains in a round; 1 where the availability does not say."""
    kind, _, value = availability.split(",")[0].partition(":")
    try:
        share = float(value.split("x")[0].split("-")[0]) if kind != "full" else 1.0
    except ValueError:
        return 1.0
    return share if share <= 1 else 1.0


_timed: dict[tuple[str, str, str, int], float] = {}


def _seconds_per_sample(settings: Settings, dataset: Dataset, batch: int) -> float:
    """Seconds on one core for one sample of one local epoch, timed once for each data set, model, loss and batch size."""
    key = (settings.data, settings.model, settings.loss, batch)
    if key not in _timed:
        _timed[key] = _time(settings, dataset, batch)
    return _timed[key]


def _time(settings: Settings, dataset: Dataset, batch: int) -> float:
    """Seconds for one sample of the fastest of a few epochs of four clients with four batches each, after one to warm up:
    whatever else a machine does makes one epoch longer, never shorter."""
    n = 4 * batch
    rows = np.arange(4 * n) % len(dataset.y)
    x, y = dataset.x[rows], dataset.y[rows]
    sample = data.arrays(x, y, x[:1], y[:1], classes=dataset.classes, layout="channels first")
    federation = data.build(sample, "iid", 4, np.random.default_rng(0), np.random.default_rng(1))
    step = Settings(model=settings.model, loss=settings.loss, batch=batch, epochs=1, clients=4, rounds=1, workers=1)
    loop = loop_of(resolve(step, federation, Method()))
    try:
        start = loop.down(loop.begin(), 1)
        loop.trainer.train(start, [0, 1, 2, 3], {})
        return _fastest(lambda: loop.trainer.train(start, [0, 1, 2, 3], {})) / (4 * n)
    finally:
        loop.trainer.close()


def _fastest(epoch: Callable[[], object]) -> float:
    """Seconds of the fastest of three epochs, or of those that begin within a second."""
    times: list[float] = []
    while len(times) < 3 and sum(times) < 1:
        before = time.perf_counter()
        epoch()
        times.append(time.perf_counter() - before)
    return min(times)
