"""The small federation on which methods are checked, and the settings of the runs on it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np

from unskew import data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.engine.resolve import Run, resolve
from unskew.errors import UsageError

SIZES = (40, 1, 0, 2, 33, 17, 3, 20)
"""Samples of the test federation's clients: the first client has one class, the third has no samples."""


NORMALISED = "cnn_small(batch_norm=True)"


def federation(channels: int = 3) -> Federation:
    """Eight small clients of 8x8 images in three classes."""
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    y = rng.integers(0, 3, n)
    y[: SIZES[0]] = 1
    x = (0.2 * rng.random((n, channels, 8, 8)) + 0.2 * y[:, None, None, None]).astype(np.float32)
    edges = np.cumsum([0, *SIZES])
    train = Index.of([np.arange(a, b) for a, b in pairwise(edges)])
    dataset = data.arrays(x, y, x[:60], y[:60], classes=("a", "b", "c"), name="check")
    built = data.build(dataset, "iid", len(SIZES), rng, np.random.default_rng(8))
    return dataclasses.replace(built, x=x, y=y.astype(np.int64), train=train)


def settings(**changes: object) -> Settings:
    """Settings of a short run on the test federation."""
    return Settings(clients=len(SIZES), rounds=3, epochs=1, batch=16, workers=1, model="cnn_small").replace(**changes)


def run_for(method: Method, clients: Federation | None = None, /, **changes: object) -> Run:
    """A run of this method on the test federation, or on these clients, ready to be begun.

    Its model has batch normalisation where the method refuses one without, unless `changes` name a model.
    """
    plain, clients = settings(**changes), federation() if clients is None else clients
    try:
        return resolve(plain, clients, method)
    except UsageError as refusal:
        if refusal.code != "E108" or "model" in changes:
            raise
        return resolve(plain.replace(model=NORMALISED), clients, method)


def settings_for(method: Method, /, **changes: object) -> Settings:
    """The settings of that run, which may be for other clients; of a model that `changes` name, without building it."""
    plain = settings(**changes)
    if "model" in changes:
        return plain
    try:
        return resolve(plain, federation(), method).settings
    except UsageError as refusal:
        if refusal.code != "E108":
            raise
        return plain.replace(model=NORMALISED)
