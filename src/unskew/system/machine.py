"""The number of threads, and the memory that this process may use."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath


@contextmanager
def one_core() -> Iterator[None]:
    """Compute on one thread: faster for short sums, and the result does not depend on the number of cores."""
    import torch  # here, so that listing data sets need not load it

    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_objects() -> Iterator[None]:
    """What is made inside lives as long as the process, as modules do, and garbage collection passes over it.
    Collections while torch is imported, and of what it has built, take a third of a second."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


CGROUPS = Path("/sys/fs/cgroup")
"""Linux's folder with the memory limits of groups of processes, such as a container or a cluster's job."""
OWN_GROUPS = Path("/proc/self")
"""Linux's folder with the groups of this process."""


def usable_memory() -> int:
    """The memory in bytes that this process may use: that of the machine, or the lower limit of its job or
    container."""
    return min((os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(), *_addresses()))


def _limits() -> Iterator[int]:
    """The memory limits of the groups of this process and of their parents."""
    files, lines = {CGROUPS / "memory.max"}, list[str]()
    with suppress(OSError):
        lines = (OWN_GROUPS / "cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        folders = PurePosixPath(path.lstrip("/"))
        for group in (folders, *folders.parents):
            if not controllers:
                files.add(CGROUPS / group / "memory.max")
            elif "memory" in controllers.split(","):
                files.add(CGROUPS / "memory" / group / "memory.limit_in_bytes")
    for file in files:
        with suppress(OSError, ValueError):  # there is no file, or it says "max"
            yield int(file.read_text())


def _addresses() -> Iterator[int]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        yield limit
