"""Clients' private state between rounds: in memory, or in one file per round on disk.

On disk, only the cohort's state is loaded, and every other client costs an index entry. A round's file is
written before the checkpoint that refers to it, and removed when no checkpoint refers to it. The index grows
by one row per round, so saving costs only in proportion to the cohort; a checkpoint records its length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open

from unskew.core.trees import Tree, align, align_tree, nested_tree, tree_map
from unskew.errors import StateError
from unskew.records.checkpoints import UNREADABLE, digest, file_facts, write_with_digest
from unskew.records.rows import FileLines, Mark
from unskew.system import disk

INDEX_FILE = "index.jsonl"
INDEX_MARK = "private_index"
"""The key in a checkpoint's facts of the index's length and SHA-256."""
CLIENTS = "private"
"""The key in the facts of a run whose state is on other machines: a list of (client, round) instead."""


def _rows(path: Path, mark: Mark) -> Iterator[dict[str, Any]]:
    """The rows in the marked beginning of the file. Raises ValueError for another SHA-256."""
    size, sha256 = mark
    with open(path, "rb") as file:
        content = file.read(size)
    if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(path)
    return map(json.loads, content.splitlines())


class Store(Protocol):
    """The clients' private state."""

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        """The state of those of the clients that have any."""
        ...

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        """Store clients' state after round t."""
        ...

    def known(self) -> list[int]:
        """The clients that have state, ascending."""
        ...


class MemoryStore:
    """A store in memory, for runs without a folder."""

    def __init__(self) -> None:
        self._trees: dict[int, Tree] = {}

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {k: self._trees[k] for k in clients if k in self._trees}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self._trees |= {k: align_tree(tree) for k, tree in trees.items() if tree}  # aligned as from a disk

    def known(self) -> list[int]:
        return sorted(self._trees)


class DiskStore:
    """A store on disk: `private/r000041.safetensors` has the state of round 41's clients, and the rows of
    `index.jsonl` each client's last round.

    A file's facts have the SHA-256 of every client's tensors, the index the SHA-256 of these facts by round,
    and the checkpoint the SHA-256 of the index, so that damage is detected.

    facts: of a checkpoint; by default before the first. device: of the fetched state. Raises StateError
    (E201) if the index is missing or damaged. Nothing is written before the first `put`.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any] | None = None, device: str = "cpu"):
        known = facts or {}
        self.folder, self.device = folder, device
        self.index: dict[int, int] = dict(known.get(CLIENTS, ()))
        """By client, the round of its last state."""
        self.files: dict[int, str] = {}
        """By round, the SHA-256 of its file's facts."""
        self._mark: Mark | None = known.get(INDEX_MARK)
        self._lines: FileLines | None = None
        try:
            for row in _rows(folder / INDEX_FILE, self._mark) if self._mark else ():
                self._take(int(row["t"]), str(row["sha256"]), [int(k) for k in row["clients"]])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            text = "says which file holds whose private state, and it is missing or not as the run wrote it"
            raise StateError("E201", f"{folder / INDEX_FILE} {text}.") from error
        self._previous = set(self.index.values())
        """The rounds to whose files the last checkpoint refers."""
        self.files = {t: sha256 for t, sha256 in self.files.items() if t in self._previous}
        self._swept = False
        self._new: list[int] = []
        """The rounds of files that may not be on the disk yet."""

    def _take(self, t: int, sha256: str, clients: Iterable[int]) -> None:
        self.files[t] = sha256
        self.index.update(dict.fromkeys(clients, t))

    def facts(self) -> dict[str, Any]:
        """The store's facts for a checkpoint, which is written after `sync`; their size does not depend on
        the number of clients."""
        if self._lines:
            self._mark = self._lines.mark()
        return {INDEX_MARK: self._mark} if self._mark else {}

    def sync(self) -> None:
        """Wait until the state to which a checkpoint refers is on the disk. Raises Paused (E203) if it is
        full."""
        needed = set(self.index.values())
        if new := [self._path(t) for t in self._new if t in needed]:
            disk.sync_files(new)
        self._new.clear()
        if self._lines:
            self._lines.sync()

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        """The state of those of the clients that have any. Raises StateError (E201) if a file is missing or
        damaged."""
        rounds = self._rounds_of(clients)
        return {k: tree for t, members in rounds.items() for k, tree in self._read(t, members).items()}

    def _rounds_of(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """By round, those of the clients with their last state after it."""
        by_round: dict[int, list[int]] = {}
        for k in clients:
            if k in self.index:
                by_round.setdefault(self.index[k], []).append(k)
        return by_round

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        kept = {str(k): tree for k, tree in trees.items() if tree}
        if kept:
            disk.folder_below(self.folder)
            self._lines = self._lines or FileLines(self.folder / INDEX_FILE, self._mark)
            facts = json.dumps(
                {"t": t, "clients": {k: digest(tree) for k, tree in kept.items()}}, sort_keys=True
            )
            write_with_digest(self._path(t), kept, facts, sha256 := _sha(facts), sync=False)
            self._new.append(t)
            clients = [int(k) for k in kept]
            self._lines.add([{"t": t, "sha256": sha256, "clients": clients}])
            self._take(t, sha256, clients)

    def known(self) -> list[int]:
        return sorted(self.index)

    def check(self) -> None:
        """Raises StateError (E201) if a client's state is missing or damaged."""
        for t, members in self._rounds_of(self.index).items():
            self._read(t, members)

    def sweep(self) -> None:
        """Remove the files that neither this checkpoint nor the previous one refers to. Call it after every
        checkpoint. The first call also finds files of a killed run."""
        needed = set(self.index.values()) | self._previous
        for t in [t for t in (self.files if self._swept else self._on_disk()) if t not in needed]:
            self._path(t).unlink(missing_ok=True)
            self.files.pop(t, None)
        self._previous, self._swept = set(self.index.values()), True

    def close(self) -> None:
        if self._lines:
            self._lines.close()

    def _on_disk(self) -> list[int]:
        """The rounds of all files."""
        paths = self.folder.glob("r*.safetensors") if self.folder.exists() else ()
        return [int(path.stem[1:]) for path in paths if path.stem[1:].isdecimal()]

    def _read(self, t: int, members: Iterable[int]) -> dict[int, Tree]:
        """The state of these clients after round t, of the file of that round."""
        clients = {str(k): k for k in members}
        try:
            with safe_open(str(self._path(t)), "pt") as file:
                sha256, facts = file_facts(file.metadata())
                tensors = {n: align(file.get_tensor(n)) for n in file.keys() if n.split("/", 1)[0] in clients}
            trees, digests = nested_tree(tensors), json.loads(facts)["clients"]
            whole = sha256 == _sha(facts) == self.files[t]
            if whole and all(digest(trees.get(name, {})) == digests[name] for name in clients):
                return {
                    k: tree_map(lambda t: t.to(self.device), trees[name])
                    for name, k in clients.items()
                    if name in trees
                }
        except UNREADABLE:
            pass
        raise StateError("E201", f"private state of round {t} is missing or damaged: {self._path(t)}.")

    def _path(self, t: int) -> Path:
        return self.folder / f"r{t:06d}.safetensors"


def _sha(facts: str) -> str:
    return hashlib.sha256(facts.encode()).hexdigest()
