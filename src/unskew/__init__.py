"""unskew: federated learning for skewed and scarce data.

import unskew

result = unskew.run("flea+scaffold", data="digits", clients=20)
print(result.table())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unskew.version import __version__ as __version__

if TYPE_CHECKING:  # for editors and type checkers; they find the class of a method in its own module
    from unskew import data as data
    from unskew import methods as methods
    from unskew import models as models
    from unskew.api import compare as compare
    from unskew.api import load as load
    from unskew.api import resume as resume
    from unskew.api import run as run
    from unskew.config import Settings as Settings
    from unskew.core.client import Batch as Batch
    from unskew.core.client import Client as Client
    from unskew.core.client import Fed as Fed
    from unskew.core.method import Method as Method
    from unskew.core.part import Part as Part
    from unskew.core.replies import Ups as Ups
    from unskew.core.shares import Noise as Noise
    from unskew.core.shares import Share as Share
    from unskew.core.trip import Trip as Trip
    from unskew.diagnosis.diagnose import diagnose as diagnose
    from unskew.diagnosis.diagnosis import Diagnosis as Diagnosis
    from unskew.errors import UnskewError as UnskewError
    from unskew.experiments.reproduce import Reproduction as Reproduction
    from unskew.experiments.reproduce import reproduce as reproduce
    from unskew.results import Comparison as Comparison
    from unskew.results import Result as Result
    from unskew.round.callback import Callback as Callback
    from unskew.round.callback import Progress as Progress
    from unskew.round.callback import Replied as Replied
    from unskew.runs.callbacks import EarlyStopping as EarlyStopping
    from unskew.runs.callbacks import KeepBest as KeepBest

_HOMES = {
    "run": "unskew.api",
    "compare": "unskew.api",
    "resume": "unskew.api",
    "load": "unskew.api",
    "diagnose": "unskew.diagnosis.diagnose",
    "Diagnosis": "unskew.diagnosis.diagnosis",
    "reproduce": "unskew.experiments.reproduce",
    "Result": "unskew.results",
    "Comparison": "unskew.results",
    "Reproduction": "unskew.experiments.reproduce",
    "Settings": "unskew.config",
    "Method": "unskew.core.method",
    "Part": "unskew.core.part",
    "Share": "unskew.core.shares",
    "Trip": "unskew.core.trip",
    "Noise": "unskew.core.shares",
    "Batch": "unskew.core.client",
    "Client": "unskew.core.client",
    "Fed": "unskew.core.client",
    "Ups": "unskew.core.replies",
    "Callback": "unskew.round.callback",
    "Progress": "unskew.round.callback",
    "Replied": "unskew.round.callback",
    "EarlyStopping": "unskew.runs.callbacks",
    "KeepBest": "unskew.runs.callbacks",
    "UnskewError": "unskew.errors",
}
_ROOMS = ("data", "models", "methods")


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that the command line answers before torch is loaded."""
    if name == "__all__":
        return __dir__()
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"unskew.{name}")
    if name[:1].isupper() and name in (parts := _parts()):
        return getattr(importlib.import_module(parts[name]), name)
    raise AttributeError(f"module 'unskew' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_ROOMS, *_parts(), "__version__"])


def _parts() -> dict[str, str]:
    """The module of every method's class, by the name of the class."""
    from unskew.methods import catalogue

    return {entry.kind: entry.module for entry in catalogue.entries().values()}
