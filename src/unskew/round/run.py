"""A run: its settings, method, clients and model, as everything that trains, scores, saves or reports it
reads them.

Two methods are references of a comparison: `local` keeps every weight at its client, and `centralised` is
FedAvg on a single client that holds all training samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.data.clients.federation import Federation
from unskew.privacy.secure_aggregation import SecureAggregation
from unskew.round.callback import Callback
from unskew.tasks.task import Task

LOCAL, CENTRALISED = "local", "centralised"
REFERENCES = {LOCAL: "Nothing leaves a client.", CENTRALISED: "Reference: all raw data in one place."}
"""The methods that bound others in a comparison instead of competing, and what is said of the data they
share."""


@dataclass(frozen=True)
class Run:
    """A run: everything that training, scoring, saving and reporting read.

    method: its Parts. federation: the clients and their samples. fed: the facts that hooks see, with the
    model's structure and the task. device: "cpu" or one of torch's GPUs. lanes: the most clients that train
    side by side. remarks: (code, text) for the user before round 1. given: digests of the model and of Parts
    that a program passed as objects. callbacks: the user's callbacks.
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

    @property
    def task(self) -> Task:
        """The task, which gives the loss and the scores."""
        return self.fed.task

    @property
    def secure(self) -> SecureAggregation | None:
        """The settings of secure aggregation; None if the server sees every reply."""
        return self.settings.secure

    @property
    def weighting(self) -> str:
        """How the merge weighs clients: "size" or "equal"."""
        return "equal" if self.settings.weighting == "equal" else self.method.weighting

    @property
    def reference(self) -> bool:
        """Whether this is a reference, which bounds the methods of a comparison and does not compete."""
        return is_reference(self.settings.method)


def is_reference(method: str) -> bool:
    """Whether the method of this text bounds a comparison instead of competing in it."""
    return method in REFERENCES
