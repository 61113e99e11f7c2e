"""Keep freed memory: training asks for the same large blocks at every step, and page faults cost a tenth of it."""

from __future__ import annotations

import ctypes
import platform
from contextlib import suppress
from functools import lru_cache

# glibc's mallopt: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_ARENA_MAX
_SETTINGS = ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1))


@lru_cache
def keep_freed() -> bool:
    """Tell glibc neither to map large blocks one by one nor to return freed ones. Does nothing elsewhere."""
    if platform.libc_ver()[0] != "glibc":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all(mallopt(option, value) for option, value in _SETTINGS)
    return False
