"""What a study takes from one site: bytes, who reads them, guarantees, and epsilon by the site's own samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unskew import config
from unskew.config import Settings
from unskew.core.account import number
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.deploy import studies
from unskew.deploy.judging import Study
from unskew.deploy.loaders import load
from unskew.engine import leaves
from unskew.engine.assemble import trainer_of
from unskew.engine.client.trainer import Trainer
from unskew.engine.memory import check_room
from unskew.engine.resolve import run_on
from unskew.methods import registry


def leaving(method: Method, trainer: Trainer) -> list[str]:
    """What a study takes from this site, by its own data. What its noise amounts to protects against others only."""
    counts_KC = trainer.samples.counts_KC
    lines = leaves.what_leaves(method, trainer.fed, trainer.sent, counts_KC)
    if leaves.accounts(method, trainer.fed, counts_KC):
        reading = "against the coordinator: it knows the study's seed, from which the noise is drawn"
        lines.append(f"{'':<20}  epsilon {number(math.inf):>9}  {reading}")
    return lines


def forecast(study: Path, data: str, classes: Sequence[str], sites: int) -> tuple[Study, list[str]]:
    """What this site would send in a study, by the data that its operator names; the same as lines to read.

    sites: how many take part. Raises UsageError for a study that cannot run over a network, DataError for bad data.
    """
    asked, lines = forecast_of(load(data, classes), studies.study(config.load(study)).replace(clients=sites))
    check_room(asked.method, asked.fed)
    return asked, lines


def forecast_of(data: Dataset, settings: Settings) -> tuple[Study, list[str]]:
    """What a site that holds these data would send; `settings.clients` sites take part. Raises UsageError."""
    dataset, sites = studies.prepared(data, settings), settings.clients
    nobody = np.arange(0)
    rows = [np.arange(len(dataset.y)), *[nobody] * (sites - 1)]
    tests = [np.arange(len(dataset.y_test)), *[nobody] * (sites - 1)]
    inputs = (dataset.x, dataset.y, dataset.x_test, dataset.y_test)
    federation = Federation("site", *inputs, dataset.classes, Index.of(rows), Index.of(tests), "site")
    method = registry.parse(settings.method)
    run = run_on(federation, settings, method)
    trainer = trainer_of(run)
    trainer.close()
    return judged(settings, method, trainer, dataset), leaving(method, trainer)


def judged(settings: Settings, method: Method, trainer: Trainer, data: Dataset) -> Study:
    """What the site's policy judges. data: the site's own."""
    counts_KC, sent = trainer.samples.counts_KC, tuple(trainer.sent)
    return Study(method, settings, trainer.fed, sent, counts_KC, len(data.y), len(data.y_test))
