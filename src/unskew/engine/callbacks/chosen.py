"""The callbacks that settings ask for, and for a trial of a search its pruning."""

from __future__ import annotations

import importlib
from pathlib import Path

from unskew import specs
from unskew.config import Settings
from unskew.engine.callbacks import pruning
from unskew.engine.callbacks.callback import Callback
from unskew.engine.callbacks.early_stopping import EarlyStopping
from unskew.engine.callbacks.keep_best import KeepBest
from unskew.errors import UsageError
from unskew.texts import TRACKERS

TRACKERS_PACKAGE = "unskew.engine.callbacks.trackers"


def chosen(settings: Settings, folder: Path | None) -> list[Callback]:
    """folder: of the run, None if it is kept in memory.

    Raises UsageError: E116 where a file is asked for and there is no folder, E158 for a tracker that is not installed.
    """
    callbacks: list[Callback] = []
    if settings.patience:
        callbacks.append(EarlyStopping(settings.patience))
    if settings.keep_best:
        if folder is None:
            raise UsageError("E116", "keep_best writes a file; give run(..., name='my-run') to have a folder for it.")
        callbacks.append(KeepBest())
    if folder is not None and (folder / pruning.FILE).exists():
        callbacks.append(pruning.Pruning(pruning.read(folder)))
    for name in specs.names_in(settings.track, list(TRACKERS), "track"):
        callbacks.append(importlib.import_module(f"{TRACKERS_PACKAGE}.{name}").Tracker())
    return callbacks
