"""How long an experiment will take here: one local step of each model is timed, the rest is counted."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from unskew import data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.engine import setup

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
"""What a Part's steps cost against FedAvg's, roughly; everything else costs about the same."""


def seconds(settings: Settings, shape: tuple[int, ...], classes: int, samples: int, clients: int, tests: int) -> float:
    """Of one run on one core. samples: of all clients together; tests: rows scored at every evaluation."""
    each = _per_sample(settings.model, shape, classes, min(settings.batch, max(1, samples // clients)))
    cohort = _cohort(settings.availability)
    trained = samples * cohort * settings.epochs * settings.rounds
    scored = tests * settings.rounds / settings.eval_every / 3
    return each * (trained * _dearest(settings.method) + scored)


def _dearest(method: str) -> float:
    parts = Method.parse(method).parts if method not in ("local", "centralised") else ()
    return float(np.prod([COST.get(p.name, 1.0) for p in parts]))


def _cohort(availability: str) -> float:
    """The share of clients that trains in a round; 1 where the text does not say."""
    kind, _, value = availability.split(",")[0].partition(":")
    try:
        share = float(value.split("x")[0].split("-")[0]) if kind != "full" else 1.0
    except ValueError:
        return 1.0
    return share if share <= 1 else 1.0


@lru_cache
def _per_sample(model: str, shape: tuple[int, ...], classes: int, batch: int) -> float:
    """Seconds of one core for one sample of one local epoch."""
    n = 4 * batch
    x, y = np.zeros((4 * n, *shape), np.float32), np.arange(4 * n) % classes
    made = data.build(
        data.arrays(x, y, x[:1], y[:1], classes=[str(c) for c in range(classes)]),
        "iid", 4, np.random.default_rng(0), np.random.default_rng(1),
    )  # fmt: skip
    settings = Settings(model=model, batch=batch, epochs=1, clients=4, rounds=1, workers=1)
    loop = setup.loop_of(settings, Method(), made)
    try:
        start = loop.down(loop.begin(), 1)
        loop.trainer.train(start, [0, 1, 2, 3], {})
        before = time.perf_counter()
        loop.trainer.train(start, [0, 1, 2, 3], {})
        return (time.perf_counter() - before) / (4 * n)
    finally:
        loop.trainer.close()
