"""What trackers have in common: the names of scores, the place where they write, and a run's entry in a
store.

A round whose rows were handed over and whose checkpoint was not written is done again after a resumption, to
the same rows; and a store may have lost rows, or come into use in the middle of a run. So rows are counted:
each is handed over once.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from unskew.errors import UsageError
from unskew.records import checkpoints
from unskew.round.callback import Progress
from unskew.system import disk

Scalar = tuple[str, float, int]
"""(name, value, round)."""


def scalars(rows: Iterable[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Every row of metrics.jsonl: `global/accuracy`, and `global@client/accuracy/client-3` of a single
    client."""
    for row in rows:
        name = f"{row['scope']}/{row['metric']}"
        yield (
            name if row["client"] is None else f"{name}/client-{row['client']}",
            float(row["value"]),
            int(row["t"]),
        )


def package(name: str, install: str) -> Any:
    """A tracker's own package. Raises UsageError (E158) where it is not installed. install: what to
    install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        text = f"tracking needs {install}, which is not installed ({error})"
        raise UsageError("E158", f"{text}: pip install {install}, or leave track out.") from None


def is_saved(run: Progress) -> bool:
    """Whether the run has a checkpoint, so that what was handed over up to its round is not done again."""
    return (folder_of(run) / checkpoints.LATEST).is_file()


def folder_of(run: Progress) -> Path:
    """The run's folder. Raises UsageError (E116) for a run in memory."""
    if run.folder is None:
        raise UsageError(
            "E116", "track writes files; give run(..., name='my-run') to have a folder for them."
        )
    return run.folder


def settings_text(run: Progress) -> dict[str, str]:
    """The run's settings that are not the default's empty ones, as text, by name."""
    values = {**run.settings.as_dict(), "method": run.method}
    return {name: str(value) for name, value in values.items() if value not in (None, {}, "")}


ROWS = "metrics.jsonl"
Row = Mapping[str, Any]


class StoreEntry:
    """A run's entry in a store, noted in a file of the run's folder, whose record is as it was at the
    checkpoint."""

    def __init__(self, folder: Path, name: str, store: str):
        """name: of the file. store: where the entry is; that of another store counts for nothing."""
        self._path, self._store, self._rows = folder / name, store, folder / ROWS
        known: dict[str, Any] = json.loads(self._path.read_text()) if self._path.is_file() else {}
        known = known if known.get("store") == store else {}
        self.number = str(known.get("run", ""))
        """As the store calls the run; "" where it has no entry yet."""
        self._written = self._lines()
        self._held = int(known.get("rows", self._written if known else 0))

    def begin(self, number: str) -> None:
        """The store has an entry of this number now."""
        self.number = number
        self._keep()

    def missed(self) -> list[Row]:
        """The rows so far that the store does not have, although the run has come further."""
        if self._held >= self._written:
            return []
        with open(self._rows, encoding="utf-8") as file:
            return [json.loads(line) for line in islice(file, self._held, self._written)]

    def new(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those of the rows that the run has come to now which the store does not have."""
        known = max(0, self._held - self._written)
        self._written += len(rows)
        return rows[known:]

    def has_all(self) -> None:
        """The store has every row that the run has come to."""
        self._held = max(self._held, self._written)
        self._keep()

    def _lines(self) -> int:
        if not self._rows.is_file():
            return 0
        with open(self._rows, "rb") as file:
            return sum(1 for _ in file)

    def _keep(self) -> None:
        disk.replace(self._path, json.dumps({"store": self._store, "run": self.number, "rows": self._held}))
