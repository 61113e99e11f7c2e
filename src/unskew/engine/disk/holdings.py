"""Which round's file holds each client's last private state, written down round by round.

`private/index.jsonl` gains one row in every round, so that saving costs what the cohort costs, and not what all clients cost
that ever took part. A checkpoint vouches for the beginning of the file, as it does for the records; what a round that was
killed added beyond it is cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.engine.disk.lines import FileLines, Mark, Row
from unskew.errors import StateError

FILE = "index.jsonl"
MARK = "private_index"
"""Of a checkpoint's facts: how long the file was, and its SHA-256. Older checkpoints list every client and file instead."""
LISTS = ("private", "private_files")


class Holdings:
    """index: by client, the round of its last state. files: by round, the SHA-256 of its file's facts.

    facts: of a checkpoint; {} before the first. Raises StateError (E204) where the file does not begin with what they vouch for.
    Nothing is written before `open`.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]):
        self.path = path
        self._facts = {name: facts[name] for name in (MARK, *LISTS) if name in facts}
        self.index: dict[int, int] = dict(facts.get("private", ()))
        self.files: dict[int, str] = dict(facts.get("private_files", ()))
        self._clients = Counter(self.index.values())
        self._idle: list[int] = []
        self._older: list[int] = []
        self._lines: FileLines | None = None
        try:
            for row in _rows(path, facts[MARK]) if MARK in facts else ():
                self._take(int(row["t"]), str(row["sha256"]), [int(k) for k in row["clients"]])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            why = "it is missing" if isinstance(error, FileNotFoundError) else "it is not as the run wrote it"
            raise StateError("E204", f"{path} says which file holds whose private state, and {why}.") from None
        self._idle.clear()
        self.files = {t: sha256 for t, sha256 in self.files.items() if t in self._clients}

    def open(self) -> None:
        """Make the file ready for rows: cut to what the checkpoint vouches for, or begun. Raises Paused (E203)."""
        if self._lines is None:
            self._lines = FileLines(self.path, self._facts.get(MARK))
            if MARK not in self._facts:
                self._lines.add(self._listed())

    def add(self, t: int, sha256: str, clients: Collection[int]) -> None:
        """Round t's file holds these clients' last state from now on. Only after `open`. Raises Paused (E203)."""
        assert self._lines is not None
        self._lines.add([_row(t, sha256, clients)])
        self._take(t, sha256, clients)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to know; the rows are safely on the disk when this returns. Raises Paused (E203)."""
        return {MARK: self._lines.mark()} if self._lines else dict(self._facts)

    def needs(self, t: int) -> bool:
        """Whether this checkpoint, or the one before it, refers to round t's file."""
        return t in self._clients or t in self._idle

    def released(self) -> list[int]:
        """Call after every checkpoint: the rounds whose files neither it nor the one before it refers to any more."""
        gone = [t for t in self._older if not self.needs(t)]
        for t in gone:
            self.files.pop(t, None)
        self._older, self._idle = self._idle, []
        return gone

    def close(self) -> None:
        if self._lines:
            self._lines.close()

    def _take(self, t: int, sha256: str, clients: Collection[int]) -> None:
        self.files[t] = sha256
        self._clients[t] += len(clients)
        for k in clients:
            before = self.index.get(k)
            self.index[k] = t
            if before is not None:
                self._clients[before] -= 1
                if not self._clients[before]:
                    del self._clients[before]
                    self._idle.append(before)

    def _listed(self) -> Iterator[Row]:
        """Rows for what an older checkpoint lists."""
        by_round: dict[int, list[int]] = {}
        for k, t in self.index.items():
            by_round.setdefault(t, []).append(k)
        return (_row(t, self.files[t], sorted(clients)) for t, clients in sorted(by_round.items()))


def _row(t: int, sha256: str, clients: Collection[int]) -> Row:
    return {"t": t, "sha256": sha256, "clients": list(clients)}


def _rows(path: Path, mark: Mark) -> Iterator[Row]:
    """The rows in the file's beginning. Raises ValueError unless it has the SHA-256 of the mark."""
    size, sha256 = mark
    with open(path, "rb") as file:
        content = file.read(size)
    if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(path)
    return map(json.loads, content.splitlines())
