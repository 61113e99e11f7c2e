"""Disks that are really full, at a site and at the coordinator: small file systems in memory, which this
process mounts where nobody else sees them."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.campaign.cases import CannotTry, Case, check, until
from tests.campaign.ground import Ground
from tests.campaign.ongoing import Ongoing, runs
from tests.federation.loopback import SITES

FAMILY = "disks"
ROUNDS = 15
MEGABYTES = 200
"""Of each disk. The database of Flower's server alone needs 66: its pages have 64 KB, and it keeps a journal
of 1,000."""
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
COORDINATOR = ("federations", "runs")
"""What lies on the coordinator's disk."""


def alone() -> None:
    """Give this process, and all that it starts, a view of the file systems of its own. Raises CannotTry.

    It must have a single thread. Who is not root becomes root in a world of their own, where the kernel
    allows that.
    """
    if sys.platform != "linux":
        raise CannotTry("small file systems take Linux")
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS | (NEW_USER if user else 0)):
        raise CannotTry(f"this user may not mount anything ({os.strerror(ctypes.get_errno())})")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    done = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True)
    if done.returncode:
        raise CannotTry(f"cannot mount: {done.stderr.strip()}")


def small(root: Path) -> None:
    """Put the coordinator's folders, and each site's, on disks of their own. Raises CannotTry."""
    for disk, folders in {"coordinator": COORDINATOR, **{site: (f"site-{site}",) for site in SITES}}.items():
        place = disk_of(root, disk)
        place.mkdir()
        options = f"size={MEGABYTES}m,mode=700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "campaign", str(place)], capture_output=True, text=True
        )
        if done.returncode:
            raise CannotTry(f"cannot mount: {done.stderr.strip()}")
        for folder in folders:
            (place / folder).mkdir()
            (root / folder).symlink_to(place / folder)


def disk_of(root: Path, name: str) -> Path:
    return root / f"disk-{name}"


def remove(root: Path) -> None:
    """Take the disks away again, if there are any."""
    for place in root.glob("disk-*"):
        subprocess.run(["umount", "-l", str(place)], capture_output=True)


def fill(disk: Path) -> int:
    """Use up every byte. Returns how many that were."""
    written = 0
    with open(disk / "filler", "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    written += file.write(bytes(size))
    return written


def free(disk: Path) -> None:
    (disk / "filler").unlink(missing_ok=True)


def cases(ground: Ground, rng: random.Random) -> Iterator[Case]:
    """A full disk at a site, at the coordinator, and at both, each while a study runs."""
    if not disk_of(ground.root, "coordinator").exists():
        yield Case(FAMILY, "full disks", partial(_left_out, "this user may not mount file systems"))
        return
    site, both = rng.sample(SITES, 2)
    made: list[Callable[[Ongoing], Case]] = [
        lambda run: Case(FAMILY, f"full at {site} in {run.name}", partial(at_a_site, run, site), 240),
        lambda run: Case(
            FAMILY, f"full at the coordinator in {run.name}", partial(at_the_coordinator, run), 300
        ),
        lambda run: Case(
            FAMILY, f"full at {both} and the coordinator", partial(at_the_coordinator, run, both), 300
        ),
    ]
    yield from runs(ground, FAMILY, ROUNDS, iter(made))


def _left_out(why: str) -> str:
    raise CannotTry(why)


def at_a_site(run: Ongoing, site: str) -> str:
    """Both ends say so, the round goes on without the site, and it takes part again once there is space."""
    disk, t, before = disk_of(run.ground.root, site), run.round, len(run.events())
    size = fill(disk)
    try:
        run.wait(lambda: bool(run.told("E203", site, before)), 60, f"E203 of {site}")
        run.goes_on()
    finally:
        free(disk)
    (text, *_) = run.told("E203", site, before)
    check(
        "disk full" in run.ground.log(site) + worker_log(run, site),
        f"{site} itself says nothing of its full disk",
    )
    took_s = run.complete(120)
    return (
        f"after round {t}, {size / 2**20:.0f} MB used up: {text}; all sites answer again after {took_s:.0f} s"
    )


def worker_log(run: Ongoing, site: str) -> str:
    return run.ground.log(f"site-{site}/worker")


def at_the_coordinator(run: Ongoing, site: str = "") -> str:
    """The run pauses and says why; the server stays; once there is space the run is resumed to the same
    bits."""
    ground, t = run.ground, run.round
    disks = [disk_of(ground.root, name) for name in ("coordinator", site) if name]
    process = ground.running[run.command]
    for disk in disks:
        fill(disk)
    try:
        until(lambda: process.poll() is not None, 120, run.last_words)
        said = " ".join(ground.log(run.command).strip().splitlines()[-2:])
        check(process.returncode == 75 and "E203" in said, f"exit code {process.returncode}: {said}")
        check(ground.running["serve"].poll() is None, "`unskew serve` has ended")
    finally:
        for disk in disks:
            free(disk)
    run.goes_on(120)
    took_s = run.complete(120)
    return f"after round {t}: {said}; all sites answer again after {took_s:.0f} s"
