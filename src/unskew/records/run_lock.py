"""A lock on run.lock, so that one process writes a run. The system releases it when the process ends.

It works on one machine and between machines that share a file system with flock (NFS 4, Lustre with
`-o flock`). The content of the file names the holder for people; it has no effect on the lock.
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
    """The lock as a context. Entering raises StateError (E110) with the holder's name if it is in use, and
    Paused (E203) on a full disk."""

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
        with suppress(OSError):  # on a full disk only the holder's name is missing
            self.file.write(f"pid {os.getpid()} on {platform.node()} (since {time.strftime('%H:%M')})")
            self.file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
