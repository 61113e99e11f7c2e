"""Clients' private state between rounds: in memory, or one file a round on disk.

On disk a client that took part costs an index entry; only the cohort's state is in memory. A round's file is written
before the checkpoint that refers to it, and removed when no checkpoint refers to it any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open

from unskew.core.trees import Tree, aligned, all_aligned, nested, tree_map
from unskew.engine.disk.holdings import FILE, Holdings
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
        self._trees |= {k: all_aligned(tree) for k, tree in trees.items() if tree}  # as they are read from a disk

    def known(self) -> list[int]:
        return sorted(self._trees)


class Disk:
    """`private/r000041.safetensors` holds what round 41's clients kept; `index` says which round is each one's last.

    A file's facts hold the SHA-256 of every client's tensors, and the holdings the SHA-256 of these facts by round. The
    checkpoint vouches for the holdings, so what is read is what was written.

    facts: of a checkpoint; default: before the first. device: where what is fetched is put. Raises StateError (E204) where its index is missing or damaged.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any] | None = None, device: str = "cpu"):
        self.folder, self.holdings = folder, Holdings(folder / FILE, facts or {})
        self.device, self._swept = device, False

    @property
    def index(self) -> dict[int, int]:
        """By client, the round of its last state."""
        return self.holdings.index

    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to know of the store, of a size that does not depend on how many clients took part."""
        return self.holdings.facts()

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
            self.holdings.open()  # before the round's file, whose writing syncs the folder that names both
            facts = json.dumps({"t": t, "clients": {k: digest(tree) for k, tree in kept.items()}}, sort_keys=True)
            write_vouched(self._path(t), kept, facts, sha256 := _sha(facts))
            self.holdings.add(t, sha256, [int(k) for k in kept])

    def known(self) -> list[int]:
        return sorted(self.index)

    def check(self) -> None:
        """Raises StateError (E204) unless every client's state can be read as it was written."""
        by_round: dict[int, list[int]] = {}
        for k, t in self.index.items():
            by_round.setdefault(t, []).append(k)
        for t, members in by_round.items():
            self._read(t, members)

    def sweep(self) -> None:
        """Call after every checkpoint: remove the files that neither it nor the one before it refers to.

        The first call looks through the folder for what a killed run left; later ones only at what was replaced.
        """
        for t in self.holdings.released() if self._swept else self._left_over():
            self._path(t).unlink(missing_ok=True)
        self._swept = True

    def close(self) -> None:
        self.holdings.close()

    def _left_over(self) -> list[int]:
        paths = self.folder.glob("r*.safetensors") if self.folder.exists() else ()
        rounds = [int(path.stem[1:]) for path in paths if path.stem[1:].isdecimal()]
        left = [t for t in rounds if not self.holdings.needs(t)]
        self.holdings.released()
        return left

    def _read(self, t: int, members: Iterable[int]) -> dict[int, Tree]:
        """The state that these clients kept in round t."""
        clients = {str(k): k for k in members}
        try:
            with safe_open(str(self._path(t)), "pt") as file:
                sha256, facts = vouched(file.metadata())
                tensors = {n: aligned(file.get_tensor(n)) for n in file.keys() if n.split("/", 1)[0] in clients}
            trees, digests = nested(tensors), json.loads(facts)["clients"]
            whole = sha256 == _sha(facts) == self.holdings.files[t]
            if whole and all(digest(trees.get(name, {})) == digests[name] for name in clients):
                return {k: self._placed(trees[name]) for name, k in clients.items() if name in trees}
        except UNREADABLE:
            pass
        raise StateError("E204", f"private state of round {t} is missing or damaged: {self._path(t)}.")

    def _placed(self, tree: Tree) -> Tree:
        return tree_map(lambda t: t.to(self.device), tree)

    def _path(self, t: int) -> Path:
        return self.folder / f"r{t:06d}.safetensors"


def _sha(facts: str) -> str:
    return hashlib.sha256(facts.encode()).hexdigest()
