"""One process writes a run: a lock on run.lock, which ends with the process however it ends.

The lock alone decides, on one machine and between those that share a file system with flock (NFS 4, Lustre
with `-o flock`); what the file says of its holder is for people. A file that names a machine which has died
locks nobody out.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from unskew.errors import StateError
from unskew.system.disk import HELD, full_disk_as_paused, lock, refuse_link


class RunLock:
    """Held from `with` to its end. Raises StateError (E110), naming who holds it, at once; Paused (E203) on a
    full disk."""

    def __init__(self, folder: Path):
        self.path = folder / "run.lock"

    def __enter__(self) -> RunLock:
        with full_disk_as_paused(self.path, 0):
            self.file = open(self.path, "a+", opener=refuse_link)
        try:
            lock(self.file, wait=False)
        except OSError as error:
            if error.errno not in HELD:
                self.file.close()
                why = (
                    f"its file system cannot lock files ({error.strerror}), so two processes could write it"
                    " at once"
                )
                raise StateError(
                    "E110", f"run {self.path.parent}: {why}; put runs on one that can."
                ) from None
            self.file.seek(0)
            holder = self.file.read().strip() or "another process"
            self.file.close()
            raise StateError("E110", f"run {self.path.parent} is in use by {holder}.") from None
        self.file.truncate(0)
        with suppress(
            OSError
        ):  # on a full disk the lock holds all the same, and only its holder's name is missing
            self.file.write(f"pid {os.getpid()} on {platform.node()} (since {time.strftime('%H:%M')})")
            self.file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
