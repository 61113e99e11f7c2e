"""Builds the objects that train a run: clients on worker threads, scoring, measures, and the loop."""

from __future__ import annotations

import numpy as np
import torch

from unskew.data.clients.federation import Federation
from unskew.data.samples.dataset import SAMPLE_WEIGHT
from unskew.data.storage.rows_on_disk import Rows, is_streamed
from unskew.errors import UsageError
from unskew.measures import NONE
from unskew.records.private_state import MemoryStore, Store
from unskew.records.record import Record
from unskew.round.chunks import Recipe
from unskew.round.clients import LocalTraining
from unskew.round.evaluation import Evaluation
from unskew.round.exchange import SecureSums
from unskew.round.loop import Loop
from unskew.round.probes import Measures
from unskew.round.run import Run
from unskew.round.samples import Samples, load_samples
from unskew.round.trainer import Trainer
from unskew.runs import hardware


def loop_of(run: Run, store: Store | None = None, record: Record | None = None) -> Loop:
    """The loop of a run in this process; close its trainer in the end.

    store, record: for private state and rows, by default in memory. Raises UsageError (E126) for a measure
    that this run does not support.
    """
    record = record or Record()
    trainer = trainer_of(run)
    scoring = scoring_of(trainer, run.federation)
    try:
        measures = _measures_of(run, trainer, scoring, record)
    except UsageError:
        trainer.close()
        raise
    exchange = SecureSums(trainer, run, run.secure, record) if run.secure else trainer
    return Loop(run, exchange, scoring, store or MemoryStore(), record, measures)


def trainer_of(run: Run) -> Trainer:
    """The clients of a run with their samples, ready to train; close it in the end."""
    settings, fed = run.settings, run.fed
    return Trainer(
        run.method,
        fed,
        _samples_of(run),
        LocalTraining(
            Recipe(
                settings.batch,
                settings.epochs,
                bool(fed.net.norms),
                settings.drop_last,
                run.method.samples_apart is not None,
            ),
            settings.optimiser,
            settings.momentum,
            settings.weight_decay,
            settings.precision,
            settings.first_epochs,
        ),
        run.lanes,
        settings.workers or hardware.core_count(),
    )


def _samples_of(run: Run) -> Samples:
    """The training samples of all clients; of images that are kept as whole numbers, those that no client
    trains on are left out."""
    federation, task = run.federation, run.fed.task
    x, y, rows = federation.x, np.asarray(federation.y), federation.train
    weights, importance = federation.columns.get(SAMPLE_WEIGHT), None
    if isinstance(x, Rows) and not is_streamed(x):
        held = np.unique(rows.rows)
        x, y, rows = x[held], y[held], rows.within(held)
        weights = None if weights is None else weights[held]
    if weights is not None:
        importance = torch.as_tensor(weights, dtype=torch.float32).to(run.device)
    targets = task.targets(torch.as_tensor(y).to(run.device), federation.n_classes)
    return Samples(load_samples(x, run.device), targets, rows, federation.label_counts, importance)


def scoring_of(trainer: Trainer, federation: Federation) -> Evaluation:
    """The scores of the trainer's models on the test rows of a federation."""
    return Evaluation(
        trainer,
        load_samples(federation.x_test, trainer.device),
        np.asarray(federation.y_test),
        federation.test,
    )


def _measures_of(run: Run, trainer: Trainer, scoring: Evaluation, record: Record) -> Measures | None:
    if run.settings.measure == NONE:
        return None
    from unskew.runs.measures import RunInspector, measures_of

    names = [run.federation.name_of(k) for k in range(run.federation.clients)]
    return measures_of(run.settings.measure, RunInspector(trainer, scoring, record, names))
