"""What a study takes from one site: bytes, who reads them, guarantees, epsilon by the site's own samples, and what it tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from unskew import config, models
from unskew.attacks.coverage import HEAD, what_it_tells
from unskew.config import Settings
from unskew.core.account import number
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.deploy import forms, studies
from unskew.deploy.judging import Study, score_names
from unskew.deploy.loaders import load
from unskew.engine import leaves
from unskew.engine.assemble import trainer_of
from unskew.engine.client.trainer import Trainer
from unskew.engine.memory import check_room
from unskew.engine.resolve import run_on
from unskew.engine.units import size
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.models import count, folder
from unskew.privacy import secure
from unskew.privacy.secure import LEAST, SecureAggregation
from unskew.ram import memory
from unskew.tasks import task_of

COPIES = 8
"""How often training holds a model's weights, roughly: as they came, per lane, gradients, optimiser, the reply."""


def leaving(method: Method, trainer: Trainer, data: Dataset, summed: SecureAggregation | None = None) -> list[str]:
    """What a study takes from this site, by its own data. What its noise amounts to protects against others only.

    summed: how replies are summed, if the coordinator sees sums alone.
    """
    counts_KC = trainer.samples.counts_KC
    protector = method.protector.name if method.protector else None
    lines = leaves.what_leaves(method, trainer.fed, trainer.sent, counts_KC, secure=summed)
    protector = method.samples_apart.name if method.samples_apart else protector
    if any(name != protector for name in leaves.accounts(method, trainer.fed, counts_KC)):
        reading = "against the coordinator: it knows the study's seed, from which the noise is drawn"
        lines.append(f"{'':<20}  epsilon {number(math.inf):>9}  {reading}")
    lines += [f"{'':<20}{line}" for line in _beside(method, trainer, data, summed)]
    if summed:
        text = "of sums nothing is measured; a simulation of this study without secure aggregation bounds it from above"
        return [*lines, f"{HEAD}{text}"]
    return [
        *lines,
        *what_it_tells(method, trainer.fed, "RUN"),
        f"{'':<20}RUN: a simulation of this study on data like these",
    ]


def _beside(method: Method, trainer: Trainer, data: Dataset, summed: SecureAggregation | None) -> list[str]:
    """What every study takes, whatever its method; where each sample is protected no training loss is told."""
    lines = [f"number of training samples, a round (read: each{', and by the other sites' if summed else ''})"]
    if not method.samples_apart:
        lines += [f"mean training loss, a round (read: {'only in the sum' if summed else 'each'})"]
    if len(data.y_test):
        names = ", ".join((*score_names(trainer.fed), *(metric.key for metric in trainer.fed.metrics)))
        lines.append(f"scores on this site's own test samples: {names}, a round that is scored (read: each)")
    shape = "names, shapes and types of inputs" if trainer.net.layout else "shape"
    columns = forms.told(forms.form_of(data))
    shape += f", {columns}" if columns else ""
    shape += ", center and scale of the target" if data.target else ", class names"
    what = f"numbers of training and test samples, {shape}, whether samples look unscaled, versions"
    return [*lines, f"{what}, once (read: each)"]


def forecast(
    study: Path, data: str, classes: Sequence[str], sites: int, model: str | None = None
) -> tuple[Study, list[str]]:
    """What this site would send in a study, by the data and model that its operator names; the same as lines to read.

    The coordinator's `unskew run --on` adds a rule that reads each site's weights, unless told otherwise; so it is here, too.
    sites: how many take part. Raises UsageError for a study that cannot run over a network, DataError for bad data.
    """
    asked = studies.study(config.load(study))
    settings = studies.clipped(asked)
    sites = max(sites, LEAST) if secure.parse(settings.secure_aggregation) else sites
    of_study, lines = forecast_of(load(data, classes), studies.allowed(settings, model).replace(clients=sites))
    if settings != asked:
        lines = [f"method {settings.method}: unskew run --on adds {studies.CLIP}, unless it is given --no-clip", *lines]
    return of_study, lines


def forecast_of(data: Dataset, settings: Settings) -> tuple[Study, list[str]]:
    """What a site that holds these data would send; `settings.clients` sites take part.

    Raises UsageError, E108 for a model that has no room here, before any memory is taken for it.
    """
    dataset, sites = studies.prepared(data, settings), settings.clients
    check_model(settings, dataset)
    nobody = np.arange(0)
    rows = [np.arange(len(dataset.y)), *[nobody] * (sites - 1)]
    tests = [np.arange(len(dataset.y_test)), *[nobody] * (sites - 1)]
    inputs = (dataset.x, dataset.y, dataset.x_test, dataset.y_test)
    dealt = Index.of(rows), Index.of(tests), "site"
    federation = Federation("site", *inputs, dataset.classes, *dealt, target=dataset.target, layout=dataset.layout)
    method = registry.parse(settings.method)
    run = run_on(federation, settings, method)
    check_room(run.method, run.fed)
    trainer = trainer_of(run)
    trainer.close()
    return judged(settings, method, trainer, dataset), leaving(method, trainer, dataset, run.secure)


def check_model(settings: Settings, data: Dataset, has: int | None = None) -> None:
    """Raises UsageError (E108) for a named model whose training would not fit this machine's memory.

    has: bytes of memory; by default what this process may use.
    """
    if folder.is_on_disk(settings.model):
        return  # the site's own file or folder, which its operator named
    has = has or memory()
    shape = tuple(data.x.shape[1:])
    with torch.device("meta"):  # shapes alone
        pixels = task_of(data.y, settings.loss, data.target, shape).pixels(shape)
        module = models.build(settings.model, shape, len(data.classes), pixels, data.layout)
    weights = 4 * count.parameters(module)
    if COPIES * weights > has:
        raise UsageError(
            "E108",
            f"the study's model '{settings.model}' has {size(weights)} of weights, of which training holds about {COPIES} "
            f"copies, and this site has {size(has)} of memory.",
        )


def judged(settings: Settings, method: Method, trainer: Trainer, data: Dataset) -> Study:
    """What the site's policy judges. data: the site's own."""
    counts_KC, sent = trainer.samples.counts_KC, tuple(trainer.sent)
    return Study(method, settings, trainer.fed, sent, counts_KC, len(data.y), len(data.y_test))
