"""From settings to a run: method, clients, model, task, device and lanes, each resolved once and then handed down.

The two references of a comparison are known here and nowhere else. `local` is the method whose one Part keeps every weight
at its client; `centralised` is FedAvg on a single client that holds all training samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from unskew import calls, models
from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.guarded import is_own
from unskew.core.keys import key
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.part import Part, overrides
from unskew.core.protection import sums_released, unsummed
from unskew.core.values import Batch
from unskew.data.availability import Availability
from unskew.data.federation import Federation
from unskew.data.intake.take import take
from unskew.engine import given, hardware
from unskew.engine.callbacks.callback import Callback
from unskew.engine.client import trial
from unskew.engine.client.trainer import Elsewhere
from unskew.engine.foreseen import foreseen
from unskew.engine.inputs import inputs_of
from unskew.engine.memory import check_room
from unskew.engine.sources import dataset_of, dealt_out
from unskew.errors import UsageError
from unskew.measures import NONE
from unskew.methods import registry
from unskew.models import folder, tokens
from unskew.privacy import secure
from unskew.privacy.secure import LEAST, SecureAggregation
from unskew.tasks import Task, task_of
from unskew.tasks.metrics import Functions, metrics_of

LOCAL, _CENTRALISED = "local", "centralised"
REFERENCES = {LOCAL: "Nothing leaves a client.", _CENTRALISED: "Reference: all raw data in one place."}
"""The methods that bound others in a comparison instead of competing, and what is said of the data they share."""
Data: TypeAlias = Any
"""Samples as they may be given in Python: whatever `unskew.data.take` understands."""


@dataclass(frozen=True)
class Run:
    """What a run consists of. Whatever trains, scores, saves or reports it asks this value.

    method: its Parts. federation: the clients and their samples. fed: the facts that hooks see, among them the model's
    structure and the task. device: "cpu" or one of torch's GPUs. lanes: the most clients that train side by side.
    remarks: what a user should know before round 1, each with its code. given: digests of the model and of Parts that a
    program gave as objects. callbacks: who is told how it goes. elsewhere: who trains the clients in place of this process.
    """

    settings: Settings
    method: Method
    federation: Federation
    fed: Fed
    device: str
    lanes: int
    remarks: tuple[tuple[str, str], ...] = ()
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    callbacks: tuple[Callback, ...] = ()
    elsewhere: Elsewhere | None = None

    @property
    def task(self) -> Task:
        return self.fed.task

    @property
    def secure(self) -> SecureAggregation | None:
        """How replies are summed so that the server sees the sum alone; None where it sees each."""
        return secure.parse(self.settings.secure_aggregation)

    @property
    def weighting(self) -> str:
        """How the merge weighs clients: "size" or "equal"."""
        return "equal" if self.settings.weighting == "equal" else self.method.weighting

    @property
    def reference(self) -> bool:
        """Whether this is a reference, which bounds the methods of a comparison and does not compete."""
        return is_reference(self.settings.method)


def resolve(
    settings: Settings,
    data: Data | None = None,
    method: Method | Part | None = None,
    model: nn.Module | None = None,
    metrics: Functions | None = None,
) -> Run:
    """The run that settings describe, its data read and its model built.

    data, method, model, metrics: given in Python instead of what the settings name, metrics by name.
    Raises UsageError for settings that cannot work together or do not fit the data, DataError for data that nobody can
    train on.
    """
    settings = settings.replace(availability="full") if pools(settings) else settings  # its one client stands for all
    method = method_of(settings, method)
    run = run_on(federation_of(settings, method, data, model), settings, method, model, metrics)
    check_room(method, run.fed)
    return replace(run, given=given.digests(method, model, metrics or {}))


def run_on(
    federation: Federation,
    settings: Settings,
    method: Method,
    model: nn.Module | None = None,
    metrics: Functions | None = None,
) -> Run:
    """The run of a method on clients that hold their samples already. Raises UsageError, DataError for what cannot work."""
    Availability.parse(settings.availability).presence.check(federation.clients, settings.rounds)
    device = hardware.device_of(settings)
    task = task_of(federation.y, settings.loss, federation.target, federation.shape)
    method.check_task(task.name)
    theirs = model is not None or folder.is_on_disk(settings.model)
    module = _as_parts_need(method, model_of(settings, federation, task, model), federation, task, settings.seed)
    net = Network(module, federation.shape, handed_over=not theirs, layout=federation.layout)
    del module  # it may be large
    fed = _facts(settings, federation, net, task)
    for p in method.parts:
        net.add({f"{p.name}.{n}": t for n, t in p.weights(fed).items()})
    fed = replace(
        fed,
        metrics=metrics_of(settings.metrics, task.name, metrics),
        proximal=method.proximal,
        reserved=_reserved(federation, device),
        sums=sums_released(method.parts, settings.rounds) if method.samples_apart else 0,
        **method.divided(fed),
    )
    method.check(fed)
    check_secure(settings, method, fed)
    trial.check_single_samples(net, task, settings.batch)
    hardware.check_rounds(net, settings.precision)
    lanes, remarks = hardware.lanes_of(settings, net, device), ()
    if theirs:
        lanes, remarks = hardware.tried(fed, federation, device, lanes, method.samples_apart, settings.lanes == "auto")
    remarks = (*remarks, *foreseen(settings, method, fed))
    return Run(settings, method, federation, fed, device, lanes, remarks)


def check_secure(settings: Settings, method: Method, fed: Fed) -> None:
    """Raises UsageError (E134) for a run that cannot do with the sums that secure aggregation gives."""
    summing = secure.parse(settings.secure_aggregation)
    if summing is None:
        return
    remedy = "set secure_aggregation=off"
    for part in method.parts:
        if reason := unsummed(part, fed):
            text = f"secure aggregation is not possible with '{part.name}': {reason}"
            raise UsageError("E134", f"{text}; leave '{part.name}' out, or {remedy}.")
    if fed.clients < LEAST:
        text = f"secure aggregation takes {LEAST} clients, because each of two could tell the other's part of a sum"
        raise UsageError("E134", f"{text}; here are {fed.clients}. Take more, or {remedy}.")
    if settings.measure != NONE:
        text = f"'{settings.measure}' is measured on single replies, which nobody sees with secure aggregation"
        raise UsageError("E134", f"{text}; set measure=none, or {remedy}.")
    summing.fraction(fed.clients)


def method_of(settings: Settings, method: Method | Part | None = None) -> Method:
    """The method given in Python, or else the one that settings name. Raises UsageError (E102, E107, E121)."""
    if isinstance(method, Part):
        return Method(method)
    return parts_of(settings.method, settings.set) if method is None else method


def parts_of(text: str, arguments: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """The method that is written `text`, also if it is a reference. arguments: further ones, by Part."""
    return Method() if text == _CENTRALISED else registry.parse(text, _plain(arguments))


def written(text: str, arguments: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """A method's text with all its arguments in one spelling."""
    return text if text == _CENTRALISED else str(registry.parse(text, _plain(arguments)))


def arguments_for(text: str, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of the arguments, by Part, whose Part is in the method that is written `text`."""
    return {} if text == _CENTRALISED else registry.meant_for(text, arguments)


def in_full(settings: Settings) -> Settings:
    """The same settings with the arguments of `set` written into the method."""
    return settings if pools(settings) else settings.replace(method=written(settings.method, settings.set), set={})


def compared(settings: Settings) -> Settings:
    """The settings of a method as one row of a comparison: nobody is absent from centralised training, and references
    are neither measured nor summed, for none of their clients share anything."""
    if settings.method == _CENTRALISED:
        settings = settings.replace(availability="full", set={})
    alone = {"measure": NONE, "secure_aggregation": "off"}
    return in_full(settings.replace(**alone) if is_reference(settings.method) else settings)


def is_reference(method: str) -> bool:
    """Whether the method of this text bounds a comparison instead of competing in it."""
    return method in REFERENCES


def sends_weights(method: Method) -> bool:
    """Whether clients send any weights."""
    return all(part.name != LOCAL for part in method.parts)


def federation_of(
    settings: Settings, method: Method, data: Data | None = None, model: nn.Module | None = None
) -> Federation:
    """The clients of a run and their samples. data, model: given in Python instead of what the settings name.

    Raises UsageError (E109) where validation samples are to be held out of what is dealt out already, and as reading
    and dealing out do.
    """
    taken = None if data is None or isinstance(data, str) else take(data)
    if isinstance(taken, Federation):
        if settings.validation:
            text = "validation holds out samples before they are dealt out; this federation is dealt out."
            raise UsageError("E109", text)
        federation = taken
    else:
        federation = dealt_out(settings, method, taken or dataset_of(settings), model)
    return federation.pooled() if pools(settings) else federation


def pools(settings: Settings) -> bool:
    """Whether one client holds the training samples of all."""
    return settings.method == _CENTRALISED


def model_of(settings: Settings, federation: Federation, task: Task, model: nn.Module | None = None) -> nn.Module:
    """The user's module with the weights it has, or the named model, initialised from the seed.

    Raises UsageError: E104 for an unknown model, E122 or E123 for one that does not fit the data.
    """
    shape, classes = federation.shape, federation.n_classes
    pixels, layout = task.pixels(shape), federation.layout
    if model is not None:
        return models.check_module(model, shape, classes, pixels, layout)
    if calls.parse(settings.model, "model", "E104").file:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(settings.seed, "model").initial_seed())
            return models.from_file(settings.model, shape, classes, pixels, layout)
    module = models.build(settings.model, shape, classes, pixels, layout)
    models.initialise(module, key(settings.seed, "model"))
    tokens.check_known(module, federation.x, federation.x_test)
    return module


def _plain(arguments: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, object]]:
    return {part: dict(values) for part, values in (arguments or {}).items()}


def _facts(settings: Settings, federation: Federation, net: Network, task: Task) -> Fed:
    return Fed(
        clients=federation.clients, classes=federation.n_classes, shape=federation.shape,
        rounds=settings.rounds, epochs=settings.epochs, batch=settings.batch, lr=settings.lr,
        net=net, sizes=federation.sizes, task=task,
        momentum=settings.momentum, optimiser=settings.optimiser,
        natural=federation.natural, seed=settings.seed,
        sampled=Availability.parse(settings.availability).independent,
        first_epochs=settings.first_epochs,
        even=settings.lr_course == "constant" and not settings.lr_warmup,
    )  # fmt: skip


def _as_parts_need(method: Method, module: nn.Module, federation: Federation, task: Task, seed: int) -> nn.Module:
    """The model as the method's Parts change it, each with a random stream of its own. Raises UsageError (E123) where a user's
    own Part makes one that does not fit the data."""
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
    x = inputs_of(federation.x[rows], device)[:]
    return Batch(x, y.to(device), torch.ones(len(rows), device=device))
