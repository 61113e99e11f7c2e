"""What the process may use: freed memory is kept, the server's small sums take one core, and what cannot fit is refused."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.engine.leaves import size
from unskew.errors import UsageError

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


def check_room(method: Method, fed: Fed, has: int | None = None) -> None:
    """Raises UsageError (E108) where the server, which holds the replies of all clients to a trip at once, has no room.

    Told now, not after the last round. Only what is surely as large counts: Shares whose rows differ by client do not.
    has: bytes of memory; of this machine unless given.
    """
    has = has or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for part in method.parts:
        for trip in part.trips:
            each = sum(s.max_bytes for s in trip.shares(fed).values() if None not in s.shape)
            if trip.everyone and each * fed.clients > has:
                raise UsageError(
                    "E108",
                    f"'{part.name}' cannot run here: its server would hold {size(each * fed.clients)} at once, {size(each)} "
                    f"from each of {fed.clients} clients, and this machine has {size(has)} of memory. Take a model whose "
                    f"head reads fewer features than {fed.features}, or see `unskew explain {part.name}` for lighter arguments.",
                )
