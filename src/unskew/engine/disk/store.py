"""Clients' private state between rounds: in memory, or one file a round on disk.

On disk a million clients cost an index entry each; only the cohort's state is in memory. A round's file is written
before the checkpoint that refers to it, and removed when no checkpoint refers to it any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from safetensors import safe_open

from unskew.core.trees import Tree, aligned, nested
from unskew.engine.disk.state import UNREADABLE, digest, vouched, write_vouched
from unskew.errors import StateError


class Store(Protocol):
    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]: ...
    def put(self, t: int, trees: Mapping[int, Tree]) -> None: ...
    def known(self) -> list[int]: ...


class Memory:
    """For runs without a folder."""

    def __init__(self) -> None:
        self._trees: dict[int, Tree] = {}

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {k: self._trees[k] for k in clients if k in self._trees}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self._trees |= {k: tree for k, tree in trees.items() if tree}

    def known(self) -> list[int]:
        return sorted(self._trees)


class Disk:
    """`private/r000041.safetensors` holds what round 41's clients kept; `index` says which round is each one's last.

    A file's facts hold the SHA-256 of every client's tensors, and `files` the SHA-256 of these facts by round. Both
    `index` and `files` are in the checkpoint, so what is read is what was written.
    """

    def __init__(self, folder: Path, index: Mapping[int, int] | None = None, files: Mapping[int, str] | None = None):
        self.folder, self.index, self.files = folder, dict(index or {}), dict(files or {})

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        """The state of those of the clients that have any. Raises StateError (E204) if a file is missing or damaged."""
        by_round: dict[int, list[int]] = {}
        for k in clients:
            if k in self.index:
                by_round.setdefault(self.index[k], []).append(k)
        return {k: tree for t, members in by_round.items() for k, tree in self._read(t, members).items()}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        kept = {str(k): tree for k, tree in trees.items() if tree}
        if kept:
            self.folder.mkdir(exist_ok=True)
            facts = json.dumps({"t": t, "clients": {k: digest(tree) for k, tree in kept.items()}}, sort_keys=True)
            self.files[t] = _sha(facts)
            write_vouched(self._path(t), kept, facts, self.files[t])
            self.index |= dict.fromkeys(map(int, kept), t)

    def known(self) -> list[int]:
        return sorted(self.index)

    def check(self) -> None:
        """Raises StateError (E204) unless every client's state can be read as it was written."""
        by_round: dict[int, list[int]] = {}
        for k, t in self.index.items():
            by_round.setdefault(t, []).append(k)
        for t, members in by_round.items():
            self._read(t, members)

    def sweep(self, *also: Mapping[int, int]) -> None:
        """Remove files that neither this index nor the given ones (of the checkpoint before) refer to."""
        needed = {t for index in (self.index, *also) for t in index.values()}
        for path in self.folder.glob("r*.safetensors") if self.folder.exists() else ():
            if path.stem[1:].isdecimal() and int(path.stem[1:]) not in needed:
                path.unlink()
        self.files = {t: sha256 for t, sha256 in self.files.items() if t in needed}

    def _read(self, t: int, members: Iterable[int]) -> dict[int, Tree]:
        """The state that these clients kept in round t."""
        clients = {str(k): k for k in members}
        try:
            with safe_open(str(self._path(t)), "pt") as file:
                sha256, facts = vouched(file.metadata())
                tensors = {n: aligned(file.get_tensor(n)) for n in file.keys() if n.split("/", 1)[0] in clients}
            trees, digests = nested(tensors), json.loads(facts)["clients"]
            whole = sha256 == _sha(facts) == self.files[t]
            if whole and all(digest(trees.get(name, {})) == digests[name] for name in clients):
                return {k: trees[name] for name, k in clients.items() if name in trees}
        except UNREADABLE:
            pass
        raise StateError("E204", f"private state of round {t} is missing or damaged: {self._path(t)}.")

    def _path(self, t: int) -> Path:
        return self.folder / f"r{t:06d}.safetensors"


def _sha(facts: str) -> str:
    return hashlib.sha256(facts.encode()).hexdigest()
