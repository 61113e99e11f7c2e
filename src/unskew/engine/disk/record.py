"""What a run writes down while it goes: metrics, ledger and events as JSON lines, in memory or in its folder.

A checkpoint remembers how long each file was, and resuming cuts them back to that, so that a round done twice is
written once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unskew import disk

KINDS = ("metrics", "ledger", "events")
MEASURES = "measures.json"
Row = dict[str, Any]


class Record:
    """The rows of a run so far; with a folder they are on disk as well."""

    def __init__(self, folder: Path | None = None, lengths: dict[str, int] | None = None):
        self.folder = folder
        self.rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        self.measures: dict[str, Any] = {}
        self._files: dict[str, disk.Appending] = {}
        for kind in KINDS if folder else ():
            path = folder / f"{kind}.jsonl"
            self._files[kind] = disk.Appending(path, (lengths or {}).get(kind, 0))
            if lengths:
                self.rows[kind] = [json.loads(line) for line in path.read_text().splitlines()]
        if folder and lengths and (folder / MEASURES).is_file():
            self.measures = json.loads((folder / MEASURES).read_text())

    def add(self, kind: str, rows: Iterable[Row]) -> None:
        new = list(rows)
        self.rows[kind] += new
        if self.folder and new:
            self._files[kind].add("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in new))

    def keep_measures(self, pictures: dict[str, Any]) -> None:
        """Matrices and pictures of the last round, into measures.json; written whole or not at all."""
        self.measures = pictures
        if self.folder:
            disk.replace(self.folder / MEASURES, json.dumps(pictures, separators=(",", ":")))

    def lengths(self) -> dict[str, int]:
        """Bytes of every file, safely on disk."""
        for file in self._files.values():
            file.sync()
        return {kind: file.size for kind, file in self._files.items()}

    def series(self, scope: str, metric: str) -> tuple[list[int], list[float]]:
        points = [
            (r["t"], r["value"])
            for r in self.rows["metrics"]
            if r["scope"] == scope and r["metric"] == metric and r["client"] is None
        ]
        return [t for t, _ in points], [v for _, v in points]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
