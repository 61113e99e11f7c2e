"""Memory that is freed goes back to the system at once, in processes through which the pieces of large models pass."""

from __future__ import annotations

import ctypes
import platform
from contextlib import suppress

_SETTINGS = ((-3, 1 << 20), (-8, 2))
"""glibc's M_MMAP_THRESHOLD and M_ARENA_MAX: else blocks of megabytes stay in the heaps of a dozen threads."""


def return_freed() -> None:
    """Have glibc return large blocks when they are freed; elsewhere do nothing. Call it before other threads start."""
    if platform.libc_ver()[0] == "glibc":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in _SETTINGS:
                mallopt(option, value)
