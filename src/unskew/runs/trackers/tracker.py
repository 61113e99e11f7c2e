"""The common part of trackers: the names of scores, the place of their files, and a run's entry in a store.

After a resumption, rounds without a checkpoint are repeated with equal rows, which a store then has twice.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage, UsageError
from unskew.records import checkpoints
from unskew.round.callback import Progress
from unskew.system import disk

Scalar = tuple[str, float, int]
"""(name, value, round)."""


def scalars(rows: Iterable[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Every row of metrics.jsonl: `global/accuracy`, or `global@client/accuracy/client-3` for a single
    client."""
    for row in rows:
        name = f"{row['scope']}/{row['metric']}"
        yield (
            name if row["client"] is None else f"{name}/client-{row['client']}",
            float(row["value"]),
            int(row["t"]),
        )


def package(name: str, install: str) -> Any:
    """Import a tracker's package. install: the name to install. Raises UsageError (E133) if it is not
    installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage("tracking", install, instead="or leave track out") from error


def is_saved(run: Progress) -> bool:
    """Whether the run has a checkpoint, so that rows up to its round are not repeated."""
    return (folder_of(run) / checkpoints.LATEST).is_file()


def folder_of(run: Progress) -> Path:
    """The run's folder. Raises UsageError (E109) for a run in memory."""
    if run.folder is None:
        raise UsageError(
            "E109", "track writes files; give run(..., name='my-run') to have a folder for them."
        )
    return run.folder


def settings_text(run: Progress) -> dict[str, str]:
    """The run's settings without empty values, as text by name."""
    values = {**run.settings.as_dict(), "method": run.method}
    return {name: str(value) for name, value in values.items() if value not in (None, {}, "")}


def entry_in(path: Path, store: str) -> str:
    """The store's name for the run, which a file in the run's folder records; "" without an entry there.
    store: the location of the entry; a file for another store is ignored."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return str(known.get("run", "")) if known.get("store") == store else ""


def keep_entry(path: Path, store: str, number: str) -> None:
    """Record the store's name for the run."""
    disk.replace(path, json.dumps({"store": store, "run": number}))
