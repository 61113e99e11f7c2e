"""From settings to a run: resolves the data, method, clients, model, task, device and lanes, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from unskew import data, models
from unskew.config import TRACKERS, Settings
from unskew.core import module_inputs
from unskew.core.client import Batch, Fed
from unskew.core.method import Method, stage_remarks, sum_problem, sums_released
from unskew.core.network import Network
from unskew.core.part import Part, overrides
from unskew.core.random_keys import key, numpy_key
from unskew.core.user_parts import is_own
from unskew.data.clients.federation import Federation
from unskew.data.data_overview import with_warnings
from unskew.data.registry import check_text, stored
from unskew.data.samples.dataset import SAMPLE_WEIGHT, Dataset, validation_of
from unskew.data.skew import Skew
from unskew.data.standardisation import standardise
from unskew.errors import MissingPackage, UsageError
from unskew.formats.input_layout import Layout
from unskew.measures import NONE
from unskew.methods import registry
from unskew.models import ModelFunction, hf_folder
from unskew.models.registry import is_of_package
from unskew.privacy.dpsgd import noise_remarks
from unskew.privacy.secure_aggregation import LEAST_SITES
from unskew.round.run import CENTRALISED, LOCAL, Run, is_reference
from unskew.round.samples import load_samples
from unskew.runs import hardware, model_trial, object_digests
from unskew.runs.hardware import check_memory
from unskew.system.python_files import GIVEN_OBJECT
from unskew.tasks.metrics import Functions, metrics_of
from unskew.tasks.own_loss import own_loss
from unskew.tasks.task import Task, class_weights, task_of


def check_spelling(settings: Settings) -> None:
    """Check the settings without reading a sample.

    Raises UsageError for an unknown skew (E103), availability (E124), model (E104) or data set (E125), or a
    tracker that is not installed (E133), and DataError (E402) for an archive that is not on this machine.
    """
    settings.attendance  # noqa: B018 - it is parsed, which may raise
    Skew.parse(settings.skew)
    if settings.model not in ("auto", GIVEN_OBJECT) and not settings.model_file:
        models.check_text(settings.model)
    if settings.data != GIVEN_OBJECT:
        check_text(settings.data)
    for name in settings.trackers:
        if find_spec(name) is None:
            raise MissingPackage("tracking", TRACKERS[name], instead="or leave track out")


def dataset_of(settings: Settings) -> Dataset:
    """Read the data set of the settings: `name(option=value)`, an .npz file or a folder; see
    `registry.stored`.

    Raises as `check_spelling` before it reads, and DataError (E4xx) for data that cannot be read.
    """
    check_spelling(settings)
    return stored(settings.data)


ModelObject: TypeAlias = nn.Module | ModelFunction
"""A model in Python: a module, or a function that returns a new one."""


def deal_out(
    settings: Settings,
    method: Method,
    dataset: Dataset,
    model: ModelObject | None = None,
) -> Federation:
    """Divide a data set among clients; if settings and Parts ask for it, standardise it before.

    model: in place of the settings' model; samples for its embeddings stay whole numbers. Raises
    UsageError (E108) for a Part that does not serve the data's task, DataError (E103) for a partition
    that these data do not allow.
    """
    method.check_task(task_of(dataset.y, target=dataset.target, shape=dataset.shape).name)
    if settings.validation:
        dataset = validation_of(dataset, settings.validation)
    asks = settings.normalise == "dataset" or (settings.normalise == "auto" and method.normalises != "all")
    if asks and (dataset.layout or not _has_embedding(settings, dataset, model)):
        itself = method.normalises == "images" and settings.normalise == "auto"
        if dataset.layout or not itself:
            dataset = standardise(dataset, settings.normalise == "dataset", itself)
    seed = settings.seed_of_partition
    return data.build(
        dataset,
        settings.skew,
        settings.clients,
        numpy_key(seed, "partition"),
        numpy_key(seed, "test rows"),
        samples=settings.samples,
        test_samples=settings.test_samples,
        reserve=reserve_of(method),
    )


def _has_embedding(settings: Settings, dataset: Dataset, model: ModelObject | None) -> bool:
    """Whether the model has an embedding. Raises UsageError (E109) if settings standardise its samples."""
    if not isinstance(model, nn.Module):
        pixels = task_of(dataset.y, target=dataset.target, shape=dataset.shape).pixels(dataset.shape)
        model = _from_function(settings, model, dataset.shape, len(dataset.classes), pixels)
    embeds = model is not None and module_inputs.has_embedding(model)
    if not embeds and not (model is None and hf_folder.is_folder_model(settings.model)):
        return False
    if settings.normalise == "dataset":
        raise UsageError(
            "E109", "normalise=dataset would scale the whole numbers that the model looks up; use none."
        )
    return True


def reserve_of(method: Method) -> int:
    """The number of samples of each class that the server sets aside for the method's Parts."""
    return max((part.reserve for part in method.parts), default=0)


class Objects(NamedTuple):
    """Python objects in place of those that settings name: the arguments of `resolve` after the settings."""

    data: Dataset | Federation | None = None
    method: Method | Part | None = None
    model: ModelObject | None = None
    metrics: Functions = MappingProxyType({})

    @property
    def given(self) -> bool:
        """Whether there is any object."""
        return any(value is not None for value in self[:-1]) or bool(self.metrics)


def resolve(
    settings: Settings,
    data: Dataset | Federation | None = None,
    method: Method | Part | None = None,
    model: ModelObject | None = None,
    metrics: Functions | None = None,
) -> Run:
    """The run that settings describe, with its data and model.

    data, method, model: Python objects in place of those that the settings name. metrics: functions by name,
    of the settings metrics and loss.
    Raises UsageError for settings that contradict each other or do not fit the data, DataError for data that
    cannot be trained on.
    """
    if pools(settings):  # its one client has the samples of all and is always available
        settings = settings.replace(availability="full")
    method = method_of(settings, method)
    run = run_on(federation_of(settings, method, data, model), settings, method, model, metrics)
    check_memory(method, run.fed)
    return replace(run, given=object_digests.object_digests(method, model, metrics or {}))


def run_on(
    federation: Federation,
    settings: Settings,
    method: Method,
    model: ModelObject | None = None,
    metrics: Functions | None = None,
    admit: Callable[[int], None] | None = None,
) -> Run:
    """The run of a method on the clients of a federation. Raises UsageError or DataError if they do not
    fit.

    admit: is called with the bytes of the weights that Parts add to the model, before they are made, and may
    raise.
    """
    settings.attendance.presence.check(federation.clients, settings.rounds)
    device = hardware.device_of(settings)
    weights_C = None
    _check_epsilon(settings, method, federation)
    if settings.class_weights != "none":
        weights_C = class_weights(settings.class_weights, federation.label_counts.sum(0)).to(device)
    own = own_loss(settings.loss, metrics or {})
    task = task_of(federation.y, settings.loss, federation.target, federation.shape, weights_C, own)
    method.check_task(task.name)
    theirs = model is not None or is_of_package(settings.model) or hf_folder.is_on_disk(settings.model)
    module = _adapt_model(
        method, model_of(settings, federation, task, model), federation, task, settings.seed
    )
    net = Network(module, federation.shape, handed_over=not theirs, layout=federation.layout)
    del module  # it may be large
    fed = Fed(
        clients=federation.clients, classes=federation.n_classes, shape=federation.shape,
        rounds=settings.rounds, epochs=settings.epochs, batch=settings.batch, lr=settings.lr,
        net=net, sizes=federation.sizes, task=task,
        momentum=settings.momentum, optimiser=settings.optimiser,
        natural=federation.natural, seed=settings.seed,
        sampled=settings.attendance.independent,
        first_epochs=settings.first_epochs, weighted=SAMPLE_WEIGHT in federation.columns,
    )  # fmt: skip
    if admit:
        admit(added_bytes(method, fed))
    for p in method.parts:
        net.add({f"{p.name}.{n}": t for n, t in p.weights(fed).items()})
    fed = replace(
        fed,
        metrics=metrics_of(settings.metrics, task.name, metrics, getattr(task, "names", ())),
        proximal=method.proximal,
        reserved=_reserved(federation, device),
        sums=sums_released(method.parts, settings.rounds) if method.samples_apart else 0,
        **method.divided(fed),
    )
    method.check(fed)
    check_secure(settings, method, fed)
    model_trial.check_single_samples(net, task, settings.batch)
    lanes, remarks = hardware.lanes_of(settings, net, device), ()
    if theirs:
        lanes, remarks = hardware.try_model(
            fed, federation, device, lanes, method.samples_apart, settings.fixed_lanes is None
        )
    remarks = (*remarks, *noise_remarks(method, fed), *stage_remarks(method, fed.rounds, settings.patience))
    return Run(settings, method, federation, fed, device, lanes, remarks)


def added_bytes(method: Method, fed: Fed) -> int:
    """The bytes of the weights that a method's Parts add to the model, without any memory for them. Parts of
    the user's own count as none."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    parts = [p for p in method.parts if overrides(p, "weights") and not is_own(p)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        return sum(t.nbytes for p in parts for t in p.weights(fed).values())


def _check_epsilon(settings: Settings, method: Method, federation: Federation) -> None:
    """Raises UsageError (E108) for values that depend on samples which the epsilon of a Part counts apart."""
    form, gaps = (federation.intake.form, federation.intake.gaps) if federation.intake else ({}, {})
    filled = [column for column in gaps if column in form.get("missing", {})]
    common = [column for column in filled if not federation.natural or "" in gaps[column]]
    several = np.count_nonzero(federation.train.sizes) > 1  # a site has its own samples alone
    remedy = "write a number that follows from no sample into them, or leave the column out with drop="
    if settings.class_weights == "balanced" and (part := method.samples_apart or method.protector):
        values, remedy = "a balanced weight", "give class_weights a number for each class"
    elif filled and (part := method.samples_apart):
        values = f"the median in the empty cells of '{filled[0]}'"
    elif common and several and (part := method.protector):
        values = f"the median over several clients in the empty cells of '{common[0]}'"
    else:
        return
    text = (
        f"'{part.name}' cannot run here: {values} depends on every sample, which its epsilon does not count"
    )
    raise UsageError("E108", f"{text}; {remedy}.")


def check_secure(settings: Settings, method: Method, fed: Fed) -> None:
    """Raises UsageError (E108) for a run that needs more than the sums of secure aggregation."""
    summing = settings.secure
    if summing is None:
        return
    remedy = "set secure_aggregation=off"
    for part in method.parts:
        if reason := sum_problem(part, fed):
            text = f"secure aggregation is not possible with '{part.name}': {reason}"
            raise UsageError("E108", f"{text}; leave '{part.name}' out, or {remedy}.")
    if fed.clients < LEAST_SITES:
        text = (
            f"secure aggregation takes {LEAST_SITES} clients, because each of two could tell the other's part"
            " of a sum"
        )
        raise UsageError("E108", f"{text}; here are {fed.clients}. Take more, or {remedy}.")
    if settings.measure != NONE:
        text = (
            f"'{settings.measure}' is measured on single replies, which nobody sees with secure aggregation"
        )
        raise UsageError("E108", f"{text}; set measure=none, or {remedy}.")
    summing.fraction(fed.clients)


def method_of(settings: Settings, method: Method | Part | None = None) -> Method:
    """The method from Python, or else from the settings. Raises UsageError (E102, E107, E121)."""
    if isinstance(method, Part):
        return Method(method)
    return parts_of(settings.method, settings.set) if method is None else method


def parts_of(text: str, arguments: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """The method that is written `text`, also if it is a reference. arguments: further ones, by Part."""
    return Method() if text == CENTRALISED else registry.parse(text, _plain(arguments))


def method_text(text: str, arguments: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """A method's text with all its arguments in one spelling."""
    return text if text == CENTRALISED else str(registry.parse(text, _plain(arguments)))


def arguments_for(text: str, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The arguments, by Part, of the Parts in the method that is written `text`."""
    return {} if text == CENTRALISED else registry.arguments_of_method(text, arguments)


def with_arguments(settings: Settings) -> Settings:
    """The same settings with the arguments of `set` written into the method."""
    if pools(settings):
        return settings
    return settings.replace(method=method_text(settings.method, settings.set), set={})


def comparison_settings(settings: Settings) -> Settings:
    """The settings of a method as one row of a comparison: centralised training has no
    absences, and references are neither measured nor summed, because their clients share nothing."""
    if settings.method == CENTRALISED:
        settings = settings.replace(availability="full", set={})
    alone = {"measure": NONE, "secure_aggregation": "off"}
    return with_arguments(settings.replace(**alone) if is_reference(settings.method) else settings)


def sends_weights(method: Method) -> bool:
    """Whether clients send any weights."""
    return all(part.name != LOCAL for part in method.parts)


def federation_of(
    settings: Settings,
    method: Method,
    data: Dataset | Federation | None = None,
    model: ModelObject | None = None,
) -> Federation:
    """The clients of a run and their samples. data, model: given in Python instead of what the settings name.

    Raises UsageError (E109) where test samples are to be drawn for what is dealt out already, and as reading
    and dealing out do.
    """
    if isinstance(data, Federation):
        if name := next((n for n in ("validation", "test_samples") if getattr(settings, n)), ""):
            text = f"{name} chooses test samples before all are dealt out; this federation is dealt out."
            raise UsageError("E109", text)
        federation = data
    else:
        dealt = deal_out(settings, method, data or dataset_of(settings), model)
        federation = dealt.with_held_samples(
            lambda: deal_out(settings, method, data or dataset_of(settings), model)
        )
    federation = with_warnings(federation)
    return federation.pooled() if pools(settings) else federation


def pools(settings: Settings) -> bool:
    """Whether one client holds the training samples of all."""
    return settings.method == CENTRALISED


def model_of(
    settings: Settings, federation: Federation, task: Task, model: ModelObject | None = None
) -> nn.Module:
    """The user's module with the weights it has, or a new one of the user's function or the named model,
    initialised from the seed.

    Raises UsageError: E104 for an unknown model, E123 for one that does not fit the data.
    """
    shape, classes = federation.shape, federation.n_classes
    pixels, layout = task.pixels(shape), federation.layout
    if isinstance(model, nn.Module):
        return models.check_module(model, shape, classes, pixels, layout)
    if (module := _from_function(settings, model, shape, classes, pixels, layout)) is not None:
        return module
    module = models.build(settings.model, shape, classes, pixels, layout)
    models.initialise(module, key(settings.seed, "model"))
    module_inputs.check_vocabulary(module, federation.x, federation.x_test)
    return module


def _from_function(
    settings: Settings,
    make: ModelFunction | None,
    shape: tuple[int, ...],
    classes: int,
    pixels: tuple[int, ...],
    layout: Layout | None = None,
) -> nn.Module | None:
    """A new model of the user's function, or of the file or package that settings name, with random weights
    from the seed; None where there is none of these."""
    name = f"the function '{getattr(make, '__name__', 'model')}'"
    if make is None and is_of_package(settings.model):
        make, name = partial(models.build, settings.model), f"the model '{settings.model}'"
    if make is None and not settings.model_file:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(settings.seed, "model").initial_seed())
        if make is None:
            return models.from_file(settings.model, shape, classes, pixels, layout)
        return models.from_function(make, name, shape, classes, pixels, layout)


def _plain(arguments: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, object]]:
    return {part: dict(values) for part, values in (arguments or {}).items()}


def _adapt_model(
    method: Method, module: nn.Module, federation: Federation, task: Task, seed: int
) -> nn.Module:
    """The model as the method's Parts change it, each with a random stream of its own."""
    shape, classes = federation.shape, federation.n_classes
    for p in method.parts:
        if overrides(p, "model"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key(seed, "model", p.name).initial_seed())
                module = p.model(module, classes)
            if is_own(p):
                models.check_module(module, shape, classes, task.pixels(shape), federation.layout)
    return module


def _reserved(federation: Federation, device: str) -> Batch | None:
    """The samples that the server holds back for itself, if there are any."""
    rows = federation.reserved
    if not len(rows):
        return None
    y = F.one_hot(torch.as_tensor(federation.y[rows]), federation.n_classes).float()
    x = load_samples(federation.x[rows], device)[:]
    return Batch(x, y.to(device), torch.ones(len(rows), device=device))
