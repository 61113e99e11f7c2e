"""One process writes a run: an flock on run.lock, which ends with the process however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from unskew.errors import StateError


class Lock:
    """Held from `with` to its end. Raises StateError (E110), naming who holds it, at once."""

    def __init__(self, folder: Path):
        self.path = folder / "run.lock"

    def __enter__(self) -> Lock:
        self.file = open(self.path, "a+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.seek(0)
            holder = self.file.read().strip() or "another process"
            self.file.close()
            raise StateError("E110", f"run {self.path.parent} is in use by {holder}.") from None
        self.file.truncate(0)
        self.file.write(f"pid {os.getpid()} (since {time.strftime('%H:%M')})")
        self.file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
