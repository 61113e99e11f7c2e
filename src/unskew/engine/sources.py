"""From settings to samples: a named set, a file or a folder is read and dealt out to clients."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from unskew import calls, data, models, specs
from unskew.config import Settings
from unskew.core.keys import numpy_key
from unskew.core.method import Method
from unskew.data.availability import Availability
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.holdout import validation_of
from unskew.data.intake.scale import standardised, whole_numbers
from unskew.data.intake.take import GIVEN
from unskew.data.skew import Skew
from unskew.errors import UsageError
from unskew.models import folder, tokens
from unskew.tasks import task_of
from unskew.texts import TRACKERS


def check_spelling(settings: Settings) -> None:
    """Check everything that can be checked without reading a sample.

    Raises UsageError for an unknown skew (E103), availability (E124), model (E104) or data set (E125), or a tracker that is not
    installed (E158), and DataError (E402) for an archive that is not on this machine.
    """
    Availability.parse(settings.availability)
    Skew.parse(settings.skew)
    if settings.model not in ("auto", GIVEN) and not calls.parse(settings.model, "model", "E104").file:
        models.check_text(settings.model)
    if settings.data != GIVEN:
        data.check_text(settings.data)
    for name in specs.names_in(settings.track, list(TRACKERS), "track"):
        if find_spec(name) is None:
            install = TRACKERS[name]
            text = f"tracking needs {install}, which is not installed"
            raise UsageError("E158", f"{text}: pip install {install}, or leave track out.")


def dataset_of(settings: Settings) -> Dataset:
    """Read the data set that the settings name: `name(option=value)`, an .npz file or a folder.

    Raises as `check_spelling` does, before anything is read, and DataError (E4xx) for data that cannot be read.
    """
    check_spelling(settings)
    return data.read(settings.data)


def dealt_out(settings: Settings, method: Method, dataset: Dataset, model: nn.Module | None = None) -> Federation:
    """Deal a data set out to clients, after standardising it by its constants if settings and Parts ask for that.

    model: given in Python instead of the one that settings name; samples that it looks up stay whole numbers.
    Raises UsageError (E108) for a Part that does not serve the data's task, DataError (E406, E407) for a partition that
    these data do not allow.
    """
    method.check_task(task_of(dataset.y, target=dataset.target, shape=dataset.shape).name)
    if settings.validation:
        dataset = validation_of(dataset, settings.validation)
    if not dataset.layout and _looked_up(settings, dataset, model):
        dataset = whole_numbers(dataset)
    elif settings.normalise == "dataset" or (settings.normalise == "auto" and method.normalises != "all"):
        itself = method.normalises == "images" and settings.normalise == "auto"
        if dataset.layout or not itself:
            dataset = standardised(dataset, always=settings.normalise == "dataset", but_images=itself)
    seed = settings.seed_of_partition
    return data.build(
        dataset,
        settings.skew,
        settings.clients,
        numpy_key(seed, "partition"),
        numpy_key(seed, "test rows"),
        samples=settings.samples,
        reserve=reserve_of(method),
    )


def _looked_up(settings: Settings, dataset: Dataset, model: nn.Module | None) -> bool:
    """Whether the model begins with an embedding. Raises UsageError (E109) if its samples are to be standardised."""
    if model is None and settings.model != GIVEN and calls.parse(settings.model, "model", "E104").file:
        with torch.random.fork_rng(devices=[]):
            pixels = task_of(dataset.y, target=dataset.target, shape=dataset.shape).pixels(dataset.shape)
            model = models.from_file(settings.model, dataset.shape, len(dataset.classes), pixels)
    embeds = isinstance(model, nn.Module) and tokens.embeds(model)
    if not embeds and not (model is None and folder.is_named_in(settings.model)):
        return False
    if settings.normalise == "dataset":
        raise UsageError("E109", "normalise=dataset would scale the whole numbers that the model looks up; use none.")
    return True


def reserve_of(method: Method) -> int:
    """How many samples of each class the method's Parts hold back at the server."""
    return max((part.reserve for part in method.parts), default=0)
