"""From settings to something that runs: data, partition, model, method, trainer, loop."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from unskew import calls, data, models
from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.keys import key, numpy_key
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.part import overrides
from unskew.core.values import Batch
from unskew.data.availability import Availability
from unskew.data.federation import Dataset, Federation
from unskew.data.skew import Skew
from unskew.data.transforms import Shift
from unskew.engine.client.schedule import Recipe
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import LocalTraining, Samples
from unskew.engine.disk.record import Record
from unskew.engine.disk.store import Memory, Store
from unskew.engine.memory import check_room
from unskew.engine.probes.measures import Measures
from unskew.engine.server.loop import Loop
from unskew.engine.server.scores import Evaluation
from unskew.errors import UsageError
from unskew.measures import NONE
from unskew.tasks import task_of

MOST_LANES = 16


def check_spelling(settings: Settings) -> None:
    """What can be told without reading a sample.

    Raises UsageError for a skew (E103), an availability (E124), a model (E104) or a set (E125) that there is none of,
    DataError (E402) for an archive that is not there.
    """
    Availability.parse(settings.availability)
    for shift in Skew.parse(settings.skew).shifts:
        Shift.parse(shift)
    if settings.model not in ("auto", "(given)") and not calls.parse(settings.model, "model", "E104").file:
        models.check_text(settings.model)
    if settings.data != "(given)":
        data.check(settings.data)


def dataset_of(settings: Settings) -> Dataset:
    """A named set, `name(option=value)`, an .npz file or a folder. What is misspelt elsewhere is told before it is read."""
    check_spelling(settings)
    text = settings.data
    path = Path(text)
    if path.suffix == ".npz" or path.is_file():
        return data.npz(path)
    if path.is_dir():
        return data.folder(path)
    name, options = data.parse(text)
    return data.load(name, **options)


def federation_of(settings: Settings, dataset: Dataset, method: Method) -> Federation:
    """The set dealt out to clients; standardised by its constants unless a Part normalises or told otherwise."""
    method.check_task(task_of(dataset.y).name)
    if settings.validation:
        dataset = dataset.validated(settings.validation)
    wants = settings.normalise == "dataset" or (settings.normalise == "auto" and not method.normalises)
    if wants and dataset.mean is not None:
        dataset = dataset.standardised()
    seed = settings.seed_of_partition
    return data.build(
        dataset,
        settings.skew,
        settings.clients,
        numpy_key(seed, "partition"),
        numpy_key(seed, "test rows"),
        samples=settings.samples,
        reserve=max((p.reserve for p in method.parts), default=0),
    )


def model_of(settings: Settings, federation: Federation, model: nn.Module | None = None) -> nn.Module:
    """A user's module with the weights it has, or a named one initialised from the seed."""
    shape, classes = federation.shape, federation.n_classes
    pixels = task_of(federation.y).pixels(shape)
    if model is not None:
        return models.check_module(model, shape, classes, pixels)
    if calls.parse(settings.model, "model", "E104").file:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(settings.seed, "model").initial_seed())
            return models.from_file(settings.model, shape, classes, pixels)
    module = models.build(settings.model, shape, classes, pixels)
    models.initialise(module, key(settings.seed, "model"))
    return module


def device_of(settings: Settings) -> str:
    if settings.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(
            "E113", f"device is {settings.device}, and torch {torch.__version__} finds no GPU; use device=cpu."
        )
    return settings.device


def lanes_of(settings: Settings, net: Network, device: str) -> int:
    """1, or the most clients side by side. `auto` looks at the model only, so that it never changes the bits."""
    if settings.lanes != "auto":
        if not settings.lanes.isdigit() or settings.lanes == "0":
            raise UsageError("E109", f"lanes should be auto or a whole number above 0, got '{settings.lanes}'.")
        return int(settings.lanes)
    return MOST_LANES if net.folds or device != "cpu" else 1


def facts_of(settings: Settings, federation: Federation, net: Network) -> Fed:
    return Fed(
        clients=federation.clients,
        classes=federation.n_classes,
        shape=federation.shape,
        rounds=settings.rounds,
        epochs=settings.epochs,
        batch=settings.batch,
        lr=settings.lr,
        net=net,
        sizes=federation.sizes,
        task=task_of(federation.y, settings.loss),
        momentum=settings.momentum,
        optimiser=settings.optimiser,
        natural=federation.natural,
        seed=settings.seed,
    )


def loop_of(
    settings: Settings,
    method: Method,
    federation: Federation,
    model: nn.Module | None = None,
    store: Store | None = None,
    record: Record | None = None,
) -> Loop:
    """Everything wired. What cannot work is refused here, before anything trains."""
    fed = fed_of(settings, method, federation, model)
    check_room(method, fed)
    trainer = trainer_of(settings, method, federation, fed)
    scoring = scoring_of(trainer, federation)
    record = record or Record()
    try:
        measures = _measures_of(settings, trainer, scoring, record, federation)
    except UsageError:
        trainer.close()
        raise
    return Loop(method, federation, fed, settings, trainer, scoring, store or Memory(), record, measures)


def _measures_of(
    settings: Settings, trainer: Trainer, scoring: Evaluation, record: Record, federation: Federation
) -> Measures | None:
    if settings.measure == NONE:
        return None
    from unskew.engine.probes import Lens, measures_of

    names = [federation.name_of(k) for k in range(federation.clients)]
    return measures_of(settings.measure, Lens(trainer, scoring, record, names))


def fed_of(settings: Settings, method: Method, federation: Federation, model: nn.Module | None = None) -> Fed:
    """The facts of a run, with its model as the Parts need it. Raises UsageError for what cannot work together."""
    method.check_task(task_of(federation.y).name)
    module = model_of(settings, federation, model)
    net = Network(_as_parts_need(method, module, federation.n_classes, settings.seed), federation.shape)
    fed = facts_of(settings, federation, net)
    for p in method.parts:
        net.add({f"{p.name}.{n}": t for n, t in p.weights(fed).items()})
    fed = replace(
        fed,
        reserved=_reserved(federation, device_of(settings)),
        shared=tuple(n for n in net.trainable if not method.keeps(n, fed) and not method.freezes(n, fed)),
    )
    method.check(fed)
    return fed


def trainer_of(settings: Settings, method: Method, federation: Federation, fed: Fed) -> Trainer:
    """Whoever holds the samples of this federation, ready to train."""
    device = device_of(settings)
    return Trainer(
        method,
        fed,
        Samples(
            torch.as_tensor(np.asarray(federation.x), dtype=torch.float32).to(device),
            fed.task.targets(torch.as_tensor(np.asarray(federation.y)).to(device), federation.n_classes),
            federation.train,
            federation.label_counts,
        ),
        LocalTraining(
            Recipe(settings.batch, settings.epochs, bool(fed.net.norms), settings.drop_last),
            settings.optimiser,
            settings.momentum,
            settings.weight_decay,
        ),
        lanes_of(settings, fed.net, device),
        settings.workers or cores(),
    )


def scoring_of(trainer: Trainer, federation: Federation) -> Evaluation:
    """Scores on the test rows of a federation, by the trainer's model."""
    x_test = torch.as_tensor(np.asarray(federation.x_test), dtype=torch.float32).to(trainer.device)
    return Evaluation(trainer, x_test, np.asarray(federation.y_test), federation.test)


def _as_parts_need(method: Method, module: nn.Module, classes: int, seed: int) -> nn.Module:
    for p in method.parts:
        if overrides(p, "model"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key(seed, "model", p.name).initial_seed())
                module = p.model(module, classes)
    return module


def _reserved(federation: Federation, device: str) -> Batch | None:
    rows = federation.reserved
    if not len(rows):
        return None
    y = F.one_hot(torch.as_tensor(federation.y[rows]), federation.n_classes).float()
    x = torch.as_tensor(np.asarray(federation.x[rows]), dtype=torch.float32)
    return Batch(x.to(device), y.to(device), torch.ones(len(rows), device=device))


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
