"""What the process may use: freed memory is kept, and the server's small sums take one core."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

# glibc's mallopt: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_ARENA_MAX
_SETTINGS = ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1))


@lru_cache
def keep_freed() -> bool:
    """Training asks for the same large blocks at every step, and page faults cost a tenth of it.

    Tell glibc neither to map large blocks one by one nor to return freed ones; elsewhere do nothing."""
    if platform.libc_ver()[0] != "glibc":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all(mallopt(option, value) for option, value in _SETTINGS)
    return False


@contextmanager
def one_core() -> Iterator[None]:
    """Sums over weights are too short to be worth waking other cores, and their bits then do not depend on how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
