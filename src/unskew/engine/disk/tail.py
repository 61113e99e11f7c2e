"""The rows of a .jsonl file that another process is writing, as they are added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unskew.engine.disk import shapes


class Tail:
    """Reads the new whole lines of a file that grows, and that is cut when its run goes back a round.

    from_now: whether to leave out what the file holds already.
    """

    def __init__(self, path: Path, from_now: bool = False):
        self._path = path
        self._position = path.stat().st_size if from_now and path.exists() else 0
        self._number = 0  # of the line read last; beyond the first that was read

    def read(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        self._position = min(self._position, self._path.stat().st_size)
        with open(self._path, "rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                self._number += 1
                yield shapes.row(self._path, self._number, line)
