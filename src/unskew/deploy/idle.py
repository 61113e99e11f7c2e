"""When each node has last asked for messages and was given none: whatever was sent to it before that never reached it.

Flower's server hands a message out once. If the front, the server or the site's machine dies in that moment, the message
is lost, and its sender would wait for an answer until the deadline. The front notes here who has nothing to do.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

IDLE = "idle"
"""The folder in a federation's folder `flower`."""


class Idle:
    """folder: holds an empty file a node, whose time of change is the time of the question, so that a full disk
    silences nobody. All times are those of `now`."""

    def __init__(self, folder: Path):
        self.folder = folder

    @staticmethod
    def now() -> float:
        """Seconds on a clock that all programs of this machine share, and that nobody sets."""
        return time.monotonic()

    def note(self, node: int, asked: float) -> None:
        """A question of this node, which was passed on at that time, brought nothing. Whatever happens, this raises nothing."""
        path, new = self.folder / str(node), self.folder / f".{node}"
        with suppress(OSError):
            try:
                os.utime(path, (asked, asked))
            except FileNotFoundError:
                # under its own name no file may have the time of day, which is later than any of `now`
                self.folder.mkdir(mode=0o700, exist_ok=True)
                new.touch(mode=0o600)
                os.utime(new, (asked, asked))
                new.replace(path)

    def last(self, node: int) -> float:
        """When this node's last question that brought nothing was passed on; -1 if there was none."""
        try:
            return os.stat(self.folder / str(node)).st_mtime
        except OSError:
            return -1.0

    def forget(self) -> None:
        """Begin anew: the clock has, too, if this machine was started again."""
        for path in self.folder.glob("*"):
            with suppress(OSError):
                path.unlink()
