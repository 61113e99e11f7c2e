"""What trains a run is what its settings say, each by its own name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unskew.errors import UsageError
from unskew.methods import registry
from unskew.round.clients import LocalTraining
from unskew.round.exchange import SecureSums
from unskew.round.optimise import RateSchedule
from unskew.round.schedule import Recipe
from unskew.round.trainer import Trainer
from unskew.runs import conformance, hardware
from unskew.runs.assemble import loop_of, trainer_of

GIVEN = {
    "batch": 7, "epochs": 3, "first_epochs": 2, "drop_last": True, "momentum": 0.7, "weight_decay": 0.02,
    "lr_course": "cosine", "lr_warmup": 0.25, "workers": 3,
}  # fmt: skip


@pytest.fixture
def trainer():
    """Makes trainers, and closes them."""
    made = []

    def of(text: str = "fedavg", **changes: object):
        made.append(trainer_of(conformance.run_for(registry.parse(text), **changes)))
        return made[-1]

    yield of
    for each in made:
        each.close()


def test_every_setting_of_local_training_reaches_the_clients(trainer):
    made = trainer(**GIVEN, model="cnn_small(batch_norm=True)")
    recipe = Recipe(7, 3, has_norms=True, drop_last=True, apart=False)
    assert made.training == LocalTraining(recipe, "sgd", 0.7, 0.02, "float32", 2, RateSchedule(True, 0.25))
    assert made.workers == 3


def test_what_is_not_asked_for_is_off(trainer):
    made = trainer(workers=0)
    assert made.training == LocalTraining(Recipe(16, 1, has_norms=False))
    assert made.workers == hardware.core_count()


def test_samples_are_drawn_each_by_itself_where_a_part_protects_them(trainer):
    pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")
    assert trainer("dpsgd(noise_multiplier=1.0)").training.recipe.apart


def test_clients_have_their_own_rows_and_the_server_the_test_rows():
    loop = loop_of(conformance.run_for(registry.parse("fedavg")))
    federation, samples = conformance.small_federation(), loop.trainer.samples
    assert torch.equal(samples.x, torch.as_tensor(federation.x))
    assert samples.y.argmax(1).tolist() == federation.y.tolist()
    assert [rows.tolist() for rows in samples.rows] == [rows.tolist() for rows in federation.train]
    assert np.array_equal(loop.evaluation.y, federation.y_test)
    loop.trainer.close()


@pytest.mark.parametrize("asked", ["off", "on"])
def test_the_server_reads_sums_alone_where_that_is_asked_for(asked):
    loop = loop_of(conformance.run_for(registry.parse("fedavg"), secure_aggregation=asked))
    assert isinstance(loop.trainer, SecureSums) is (asked == "on")
    loop.trainer.close()


def test_a_measure_that_cannot_be_taken_leaves_no_threads_behind(monkeypatch):
    closed = []
    monkeypatch.setattr(Trainer, "close", lambda self: closed.append(self))
    with pytest.raises(UsageError, match="E126"):
        loop_of(conformance.run_for(registry.parse("local"), measure="diversity"))
    assert len(closed) == 1
