"""Builds the objects that train a run: clients on worker threads, scoring, measures, and the loop."""

from __future__ import annotations

import numpy as np
import torch

from unskew.data.clients.federation import Federation
from unskew.data.samples.dataset import SAMPLE_WEIGHT
from unskew.data.storage.sample_rows import Rows, is_streamed
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
    settings, federation, fed = run.settings, run.federation, run.fed
    weights, importance = federation.columns.get(SAMPLE_WEIGHT), None
    apart = isinstance(federation.x, Rows) and not is_streamed(federation.x)
    rows = np.unique(federation.train.rows) if apart else np.arange(len(federation.y))
    if weights is not None:
        importance = torch.as_tensor(weights[rows], dtype=torch.float32).to(run.device)
    return Trainer(
        run.method,
        fed,
        Samples(
            load_samples(federation.x[rows] if apart else federation.x, run.device),
            fed.task.targets(torch.as_tensor(federation.y[rows]).to(run.device), federation.n_classes),
            federation.train.within(rows),
            federation.label_counts,
            importance,
        ),
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
