"""Memory of the process: freed memory is kept, too large runs are refused."""

from __future__ import annotations

import ctypes
import platform
from contextlib import suppress
from functools import lru_cache

from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.engine.units import size
from unskew.errors import UsageError
from unskew.ram import memory

# glibc's mallopt: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_ARENA_MAX
_SETTINGS = ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1))


@lru_cache
def keep_freed() -> bool:
    """Have glibc keep freed memory instead of returning it to the system; elsewhere do nothing. Returns whether it does.

    Training asks for the same large blocks at every step, and page faults would cost a tenth of its time.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all(mallopt(option, value) for option, value in _SETTINGS)
    return False


def check_room(method: Method, fed: Fed, has: int | None = None) -> None:
    """Raises UsageError (E108) if the replies of all clients to a trip, which the server holds at once, do not fit.

    Only Shares of a known size count, not those whose number of rows differs by client.
    has: bytes of memory; by default what this process may use.
    """
    has = has or memory()
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
