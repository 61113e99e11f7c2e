"""The cores that a thread computes with, and the memory that this process may use."""

from __future__ import annotations

import os
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


CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux says how much memory a group of processes may use, such as a container or a job of a
cluster."""
OWN_GROUPS = Path("/proc/self")
"""Where it says in which groups this process is, and its own limits (`ulimit -v`)."""
ADDRESSES = "Max address space"


def usable_memory() -> int:
    """Bytes of memory of this machine, or fewer where this process, its job or its container may use fewer;
    more than any machine has where the system does not say (Windows)."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return min((os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(), *_addresses()))


def _limits() -> Iterator[int]:
    """The limits of the groups of processes in which this one is, and of those that hold them."""
    for file in {CGROUPS / "memory.max", *_files()}:
        with suppress(OSError, ValueError):  # there is none, or it says "max"
            yield int(file.read_text())


def _files() -> Iterator[Path]:
    for line in _lines(OWN_GROUPS / "cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        folders = PurePosixPath(path.lstrip("/"))
        for group in (folders, *folders.parents):
            if not controllers:
                yield CGROUPS / group / "memory.max"
            elif "memory" in controllers.split(","):
                yield CGROUPS / "memory" / group / "memory.limit_in_bytes"


def _addresses() -> Iterator[int]:
    for line in _lines(OWN_GROUPS / "limits"):
        if line.startswith(ADDRESSES):
            with suppress(ValueError):  # "unlimited"
                yield int(line.removeprefix(ADDRESSES).split()[0])


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
