"""What trackers have in common: what a score is called, and where they write."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.engine.callbacks.callback import Progress
from unskew.engine.disk import state
from unskew.errors import UsageError

Scalar = tuple[str, float, int]
"""(name, value, round)."""


def scalars(rows: Iterable[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Every row of metrics.jsonl: `global/accuracy`, and `global@client/accuracy/client-3` of a single client."""
    for row in rows:
        name = f"{row['scope']}/{row['metric']}"
        yield name if row["client"] is None else f"{name}/client-{row['client']}", float(row["value"]), int(row["t"])


def package(name: str, install: str) -> Any:
    """A tracker's own package. Raises UsageError (E158) where it is not installed. install: what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        text = f"tracking needs {install}, which is not installed ({error})"
        raise UsageError("E158", f"{text}: pip install {install}, or leave track out.") from None


def is_saved(run: Progress) -> bool:
    """Whether the run has a checkpoint, so that what was handed over up to its round is not done again."""
    return (folder_of(run) / state.LATEST).is_file()


def folder_of(run: Progress) -> Path:
    """The run's folder. Raises UsageError (E116) for a run in memory."""
    if run.folder is None:
        raise UsageError("E116", "track writes files; give run(..., name='my-run') to have a folder for them.")
    return run.folder


def facts(run: Progress) -> dict[str, str]:
    """The run's settings that are not the default's empty ones, as text, by name."""
    values = {**run.settings.as_dict(), "method": run.method}
    return {name: str(value) for name, value in values.items() if value not in (None, {}, "")}
