"""The common part of trackers: the names of scores, the place of their files, and a run's entry in a store.

After a resumption, rounds without a checkpoint are repeated with equal rows. A store may also have lost rows,
or come into use in the middle of a run. Rows are therefore counted, so that each is sent once.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
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


ROWS = "metrics.jsonl"
Row = Mapping[str, Any]


class StoreEntry:
    """A run's entry in a store. A file in the run's folder records its number and the count of its rows."""

    def __init__(self, folder: Path, name: str, store: str):
        """name: the name of the file. store: the location of the entry; a file for another store is
        ignored."""
        self._path, self._store, self._rows = folder / name, store, folder / ROWS
        known: dict[str, Any] = json.loads(self._path.read_text()) if self._path.is_file() else {}
        known = known if known.get("store") == store else {}
        self.number = str(known.get("run", ""))
        """The store's name for the run; "" if it has no entry yet."""
        self._written = self._lines()
        self._held = int(known.get("rows", self._written if known else 0))

    def begin(self, number: str) -> None:
        """Record the number of a new entry in the store."""
        self.number = number
        self._keep()

    def missed(self) -> list[Row]:
        """The rows of earlier rounds that the store lacks."""
        if self._held >= self._written:
            return []
        with open(self._rows, encoding="utf-8") as file:
            return [json.loads(line) for line in islice(file, self._held, self._written)]

    def new(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows among these new ones that the store lacks."""
        known = max(0, self._held - self._written)
        self._written += len(rows)
        return rows[known:]

    def has_all(self) -> None:
        """Record that the store has every row so far."""
        self._held = max(self._held, self._written)
        self._keep()

    def _lines(self) -> int:
        if not self._rows.is_file():
            return 0
        with open(self._rows, "rb") as file:
            return sum(1 for _ in file)

    def _keep(self) -> None:
        disk.replace(self._path, json.dumps({"store": self._store, "run": self.number, "rows": self._held}))
