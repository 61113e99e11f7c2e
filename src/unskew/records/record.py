"""The record of a run: metrics, ledger and events as JSON lines, in memory or in its folder.

A checkpoint records the length and the SHA-256 of every file, and resuming truncates the files to it, so that
a repeated round is recorded once, and damage is detected.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.errors import StateError
from unskew.records import checkpoints, schema
from unskew.records.rows import FileLines, Mark, MemoryLines, Row, has_mark, mark_of
from unskew.system import disk

KINDS = ("metrics", "ledger", "events")
MEASURES = "measures.json"
Marks = Mapping[str, Mark]
"""The marks of files by their names."""


class Record:
    """The rows of a run so far. Only series over rounds are in memory; rows are read from the files.

    folder: for the files; by default rows are compressed in memory. marks: of a checkpoint; the files are
    truncated to them.
    """

    def __init__(self, folder: Path | None = None, marks: Marks | None = None):
        self.folder, marks = folder, marks or {}
        self.measures: dict[str, Any] = {}
        self.privacy: dict[str, Any] = {}
        """The accounts of the Parts' releases, as in privacy.json."""
        self._new: list[Row] | None = None
        self.last_round = 0
        """The last round with scores."""
        self.lines: dict[str, FileLines | MemoryLines] = {}
        self._series: dict[tuple[str, str], tuple[array[int], array[float]]] = defaultdict(
            lambda: (array("q"), array("d"))
        )
        for kind in KINDS:
            name = f"{kind}.jsonl"
            self.lines[kind] = FileLines(folder / name, marks.get(name)) if folder else MemoryLines()
        if marks:
            self._take(self.lines["metrics"].read())
        self._measured = MEASURES in marks
        if folder and self._measured:
            self.measures = schema.parse_measures(folder / MEASURES, (folder / MEASURES).read_bytes())

    @classmethod
    def read(cls, folder: Path, marks: Marks) -> Record:
        """The record of a folder at a checkpoint, in memory; the folder does not change.

        Raises StateError (E201) if a file differs from the checkpoint's marks.
        """
        check(folder, marks)
        record = cls()
        for kind in KINDS:
            name = f"{kind}.jsonl"
            if name in marks:
                with open(folder / name, "rb") as file:
                    lines = file.read(marks[name][0]).splitlines()
                record.add(kind, schema.parse_rows(folder / name, lines))
        if MEASURES in marks:
            record.measures = schema.parse_measures(folder / MEASURES, (folder / MEASURES).read_bytes())
        record.privacy = schema.read_privacy(folder)
        record.privacy.pop(schema.ATTACKS, None)
        return record

    @property
    def rows(self) -> Mapping[str, list[Row]]:
        """All rows by kind: "metrics", "ledger" or "events". Each access reads them from the files."""
        return _Rows(self.lines)

    def rows_from(self, kind: str, start: int) -> list[Row]:
        """The rows of a kind without the first `start`."""
        return list(self.lines[kind].read(start))

    def add(self, kind: str, rows: Iterable[Row]) -> None:
        """Add rows of a kind. Raises Paused (E203) if the disk is full."""
        new = list(rows)
        self.lines[kind].add(new)
        if kind == "metrics":
            self._take(new)
            if self._new is not None:
                self._new += new

    def keep_new(self) -> None:
        """Collect new rows of metrics for `take_new` from now on."""
        self._new = []

    def take_new(self) -> list[Row]:
        """The rows of metrics that were added since the last call. Only after `keep_new`."""
        new, self._new = self._new or [], []
        return new

    def keep_measures(self, pictures: dict[str, Any]) -> None:
        """Write the matrices and pictures of the last round to measures.json, atomically."""
        self.measures, self._measured = pictures, True
        if self.folder:
            disk.replace(self.folder / MEASURES, json.dumps(pictures, separators=(",", ":")))

    def marks(self) -> dict[str, Mark]:
        """The marks of the files for a checkpoint, which is written after `sync`; {} without a folder."""
        marks = {
            f"{kind}.jsonl": lines.mark()
            for kind, lines in self.lines.items()
            if isinstance(lines, FileLines)
        }
        if self.folder and self._measured:
            marks[MEASURES] = mark_of(self.folder / MEASURES)
        return marks

    def sync(self) -> None:
        """Wait until all rows are on the disk. Raises Paused (E203) if it is full."""
        for lines in self.lines.values():
            if isinstance(lines, FileLines):
                lines.sync()

    def series(self, scope: str, metric: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of a score over all clients."""
        rounds, values = self._series.get((scope, metric), ([], []))
        return list(rounds), list(values)

    @property
    def scopes(self) -> list[str]:
        """The scopes that have scores over all clients."""
        return sorted({scope for scope, _ in self._series})

    def metrics(self, scope: str) -> list[str]:
        """The scores over all clients in this scope."""
        return sorted({metric for known, metric in self._series if known == scope})

    def latest(self, scope: str, metric: str) -> tuple[int, float] | None:
        """(round, value) of the last evaluated round; None if there is none."""
        rounds, values = self._series.get((scope, metric), ([], []))
        return (rounds[-1], values[-1]) if values else None

    def close(self) -> None:
        for lines in self.lines.values():
            lines.close()

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.last_round = row["t"]
            if row["client"] is None:
                rounds, values = self._series[row["scope"], row["metric"]]
                rounds.append(row["t"])
                values.append(row["value"])


def check(folder: Path, marks: Marks) -> None:
    """Raises StateError (E201) if a file of the record in this folder differs from a checkpoint's marks."""
    for name, mark in marks.items():
        if not _matches_mark(folder, name, mark):
            raise StateError("E201", f"{name} is missing, or not as the run wrote it.")


def altered_files(folder: Path) -> list[str]:
    """The files of the record in this folder that differ from the newest checkpoint's marks, apart from added
    rows; [] if there is no intact checkpoint."""
    marks: Marks = checkpoints.latest_facts(folder).get("records", {})
    return [name for name in marks if not _matches_mark(folder, name, marks[name])]


def _matches_mark(folder: Path, name: str, mark: Mark) -> bool:
    longer = name == MEASURES and (folder / name).is_file() and (folder / name).stat().st_size > mark[0]
    return not longer and has_mark(folder / name, mark)


def last_round_in(folder: Path) -> int:
    """The last round with a row in this folder's record, even if incomplete; -1 without rows."""
    rounds = [-1]
    for kind in KINDS:
        path = folder / f"{kind}.jsonl"
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                rounds.append(int(json.loads(line)["t"]))
            except (ValueError, TypeError, KeyError):
                continue
    return max(rounds)


class _Rows(Mapping[str, list[Row]]):
    """The rows of a record by kind, read at every access."""

    def __init__(self, lines: Mapping[str, FileLines | MemoryLines]):
        self._lines = lines

    def __getitem__(self, kind: str) -> list[Row]:
        return list(self._lines[kind].read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)
