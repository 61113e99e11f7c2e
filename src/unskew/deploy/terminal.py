"""The terminal at which a site's operator may sit."""

from __future__ import annotations

import os
import select
import sys
import termios
import time


class Terminal:
    """Standard input, while this process is in the foreground: reading in the background would stop the site."""

    def __init__(self) -> None:
        self._open = True

    def line(self, within_s: float) -> str | None:
        """None also without a terminal in the foreground, and once it is closed."""
        if not (self._open and _in_front()):
            time.sleep(within_s)
            return None
        if not select.select([sys.stdin], [], [], within_s)[0] or not _in_front():
            return None
        text = sys.stdin.readline()
        self._open = bool(text)
        return text or None

    def forget(self) -> None:
        if _in_front():
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def is_there() -> bool:
    """Whether somebody can answer at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _in_front() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
