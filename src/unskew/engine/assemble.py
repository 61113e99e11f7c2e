"""From a run to what trains it: clients on worker threads, scoring, measures, and the loop over rounds."""

from __future__ import annotations

import numpy as np
import torch

from unskew.data.federation import Federation
from unskew.engine import hardware
from unskew.engine.client.course import Course
from unskew.engine.client.schedule import Recipe
from unskew.engine.client.several import Several
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import LocalTraining, Samples
from unskew.engine.disk.record import Record
from unskew.engine.disk.store import Memory, Store
from unskew.engine.inputs import inputs_of
from unskew.engine.probes.measures import Measures
from unskew.engine.resolve import Run
from unskew.engine.server.loop import Loop
from unskew.engine.server.scores import Evaluation
from unskew.engine.server.summed import Summed
from unskew.errors import UsageError
from unskew.measures import NONE


def loop_of(run: Run, store: Store | None = None, record: Record | None = None) -> Loop:
    """The loop of a run in this process. store, record: where private state and rows are kept; default: in memory.

    Its trainer must be closed. Raises UsageError (E130) for a measure that cannot be taken of this run.
    """
    record = record or Record()
    trainer = trainer_of(run)
    scoring = scoring_of(trainer, run.federation)
    try:
        measures = _measures_of(run, trainer, scoring, record)
    except UsageError:
        trainer.close()
        raise
    exchange = Summed(trainer, run, run.secure, record) if run.secure else trainer
    return Loop(run, exchange, scoring, store or Memory(), record, measures)


def trainer_of(run: Run) -> Trainer:
    """The clients of a run with their samples, ready to train; it must be closed."""
    settings, federation, fed = run.settings, run.federation, run.fed
    trainer = Trainer(
        run.method,
        fed,
        Samples(
            inputs_of(federation.x, run.device),
            fed.task.targets(torch.as_tensor(np.asarray(federation.y)).to(run.device), federation.n_classes),
            federation.train,
            federation.label_counts,
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
            Course(settings.lr_course == "cosine", settings.lr_warmup),
        ),
        run.lanes,
        settings.workers or hardware.cores(),
    )
    others = hardware.other_gpus(run.device)
    trainer.elsewhere = run.elsewhere or (Several(trainer, others) if others else None)
    return trainer


def scoring_of(trainer: Trainer, federation: Federation) -> Evaluation:
    """Scores on the test rows of a federation, by the trainer's model."""
    return Evaluation(
        trainer, inputs_of(federation.x_test, trainer.device), np.asarray(federation.y_test), federation.test
    )


def _measures_of(run: Run, trainer: Trainer, scoring: Evaluation, record: Record) -> Measures | None:
    if run.settings.measure == NONE:
        return None
    from unskew.engine.probes import Lens, measures_of

    names = [run.federation.name_of(k) for k in range(run.federation.clients)]
    return measures_of(run.settings.measure, Lens(trainer, scoring, record, names))
