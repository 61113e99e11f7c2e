"""Clients' private state between rounds: in memory, or one file a round on disk.

On disk a million clients cost an index entry each; only the cohort's state is in memory. A round's file is written
before the checkpoint that refers to it, and removed when no checkpoint refers to it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from safetensors import safe_open

from unskew.core.trees import Tree, nested
from unskew.engine.disk.state import write
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
    """`private/r000041.safetensors` holds what round 41's clients kept; `index` says which round is each one's last."""

    def __init__(self, folder: Path, index: Mapping[int, int] | None = None):
        self.folder, self.index = folder, dict(index or {})

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        by_round: dict[int, list[int]] = {}
        for k in clients:
            if k in self.index:
                by_round.setdefault(self.index[k], []).append(k)
        trees: dict[int, Tree] = {}
        for t, members in by_round.items():
            keys = {str(k) for k in members}
            try:
                with safe_open(str(self._path(t)), "pt") as file:
                    tensors = {n: file.get_tensor(n) for n in file.keys() if n.split("/", 1)[0] in keys}
            except (OSError, ValueError) as error:
                raise StateError(
                    "E204", f"private state of round {t} is missing or damaged: {self._path(t)}."
                ) from error
            trees |= {int(k): tree for k, tree in nested(tensors).items()}  # type: ignore[misc]
        return trees

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        kept = {str(k): tree for k, tree in trees.items() if tree}
        if kept:
            self.folder.mkdir(exist_ok=True)
            write(self._path(t), kept, {"t": t})
            self.index |= dict.fromkeys(map(int, kept), t)

    def known(self) -> list[int]:
        return sorted(self.index)

    def sweep(self, *also: Mapping[int, int]) -> None:
        """Remove files that neither this index nor the given ones (of the checkpoint before) refer to."""
        needed = {t for index in (self.index, *also) for t in index.values()}
        for path in self.folder.glob("r*.safetensors") if self.folder.exists() else ():
            if int(path.stem[1:]) not in needed:
                path.unlink()

    def _path(self, t: int) -> Path:
        return self.folder / f"r{t:06d}.safetensors"
