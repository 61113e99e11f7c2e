"""What the store of a tracker calls a run, and which rows of metrics.jsonl it has, so that a resumed run goes on there.

A round whose rows were handed over and whose checkpoint was not written is done again after a resumption, to the same rows; and a
store may have lost what it was handed, or come into use in the middle of a run. So rows are counted: each is handed over once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from unskew import disk

ROWS = "metrics.jsonl"
Row = Mapping[str, Any]


class Entry:
    """A run's entry in a store, noted in a file of the run's folder, whose record is as it was at the checkpoint."""

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
