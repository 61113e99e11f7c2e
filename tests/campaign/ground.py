"""The campaign's federation: real processes on loopback, of which any can be killed, cut off, or given
another time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.cases import CannotTry, check, until
from tests.federation.loopback import SITES, Cable, Loopback, below, command_line

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "unskew.federation.front": "front",
    "flower-superlink": "superlink",
    "unskew.federation.site.worker": "worker",
}
SUPERVISED = ("front", "superlink", "worker")
"""How the names of those programs begin that unskew itself starts again; the others are for the machine's
supervisor."""
SERVER = "server"
"""Whose clock the coordinator's processes share."""


SOURCE = Path(__file__).parent / "clock.c"


@dataclass(frozen=True)
class Clock:
    """file: holds by how many seconds the clock is ahead."""

    file: Path
    library: Path

    @staticmethod
    def several(root: Path, names: Sequence[str]) -> dict[str, Clock]:
        """A clock for each name. Raises CannotTry where there is no compiler, or no way to load a library
        first."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler or sys.platform != "linux":
            raise CannotTry("moving clocks takes Linux and a C compiler")
        library = root / "clock.so"
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CannotTry(f"the C compiler fails: {done.stderr.strip()[:200]}")
        clocks = {name: Clock(root / f"{name}.clock", library) for name in names}
        for clock in clocks.values():
            clock.file.write_bytes(struct.pack("d", 0.0))
        return clocks

    def move(self, ahead_s: float) -> None:
        """Set the clock to so many seconds ahead of the true time, for processes that run already as well."""
        with open(self.file, "r+b") as file:
            file.write(struct.pack("d", ahead_s))

    @property
    def environment(self) -> dict[str, str]:
        """What lets a process see this clock."""
        return {"LD_PRELOAD": str(self.library), "CAMPAIGN_CLOCK": str(self.file)}


@dataclass
class Started:
    """What a process under a name was started with."""

    arguments: tuple[str, ...]
    restarts: int = 0


@dataclass
class Programs:
    """The processes of a federation at one moment, by what they are: "front", "worker a", "site a", "run
    k1"."""

    pids: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Under which name the process was started to which each belongs."""

    def add(self, label: str, pid: int, owner: str) -> None:
        while label in self.pids:
            label += "'"
        self.pids[label], self.owners[label] = pid, owner


class Ground(Loopback):
    """A federation whose sites reach the server over cables. clocks: of the server and each site, where they
    can be moved."""

    def __init__(self, root: Path, movable_clocks: bool = False):
        super().__init__(root)
        (root / "tmp").mkdir()
        self.clocks = Clock.several(root, (SERVER, *SITES)) if movable_clocks else {}
        self.started: dict[str, Started] = {}
        self.cables: dict[str, Cable] = {}
        for site in SITES:
            self.cable(site)

    def cable(self, site: str) -> None:
        """Let a site reach the server over a cable of its own."""
        self.cables[site] = Cable(self.home.port)
        ticket = self.root / f"site-{site}" / "ticket.json"
        ticket.write_text(json.dumps(json.loads(ticket.read_text()) | {"port": self.cables[site].port}))

    def environment(self, name: str) -> dict[str, str]:
        """Temporary files within the campaign's own folder; this code, wherever a process looks; and its
        clock."""
        clock = self.clocks.get(name if name in SITES else SERVER)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        own = {"TMPDIR": str(self.root / "tmp"), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, **(clock.environment if clock else {})}

    def start(self, name: str, *arguments: str) -> None:
        super().start(name, *arguments)
        self.started[name] = Started(arguments)

    def start_module(self, name: str, module: str, *arguments: str, **environment: str) -> None:
        """`python -m MODULE`, as `start` does for unskew."""
        with open(self.root / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.root,
                stdout=log,
                stderr=log,
                env=self.environment(name) | environment,
                start_new_session=True,
            )

    def begin(self, sites: Sequence[str] = SITES) -> None:
        """Start the server and these sites, and wait until each is connected."""
        self.start("serve", "serve", "lung")
        until(lambda: self.log("serve").count("is admitted") >= len(SITES), 90, self.logs)
        for site in sites:
            self.start_site(site)
        until(lambda: all(self.is_ready(site) for site in sites), 120, self.logs)

    def again(self, name: str) -> None:
        """Start once more what has ended, as a machine's supervisor does."""
        before = self.started[name]
        self.running.pop(name).wait()
        self.start(name, *before.arguments)
        self.started[name].restarts = before.restarts + 1

    def programs(self) -> Programs:
        """Every process of the federation that runs at this moment."""
        seen = Programs()
        for name, process in self.running.items():
            if process.poll() is not None:
                continue
            seen.add(f"site {name}" if name in SITES else name, process.pid, name)
            for pid in below(process.pid):
                command = command_line(pid)
                known = next((label for sign, label in PROGRAMS.items() if sign in command), "")
                label = f"worker {name}" if known == "worker" else known or f"child of {name}"
                if command:  # else it has just ended
                    seen.add(label, pid, name)
        return seen

    def memory(self, labels: Sequence[str]) -> int:
        """Bytes that these processes hold."""
        pids = self.programs().pids
        pages = 0
        for label in labels:
            with suppress(OSError, KeyError):
                pages += int(Path(f"/proc/{pids[label]}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> list[str]:
        """End everything. Returns what was still running of it 10 seconds later, which is killed then."""
        self.stop()
        for cable in self.cables.values():
            cable.close()
        end = time.monotonic() + 10
        while (left := left_in(self.root)) and time.monotonic() < end:
            time.sleep(0.2)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(left.values())


def left_in(root: Path) -> dict[int, str]:
    """Processes that work in a folder or below it, or name it, whoever started them: command lines by id."""
    seen, place = dict[int, str](), str(root.resolve())
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with suppress(OSError):
            where, command = os.readlink(folder / "cwd"), command_line(pid)
            if pid != os.getpid() and (where.startswith(place) or place in command):
                seen[pid] = command or where
    return seen


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and whose parent has not asked yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def check_unharmed(ground: Ground, before: Programs) -> None:
    """Raises Wrong if one of these processes has ended."""
    gone = [label for label, pid in before.pids.items() if not alive(pid)]
    check(not gone, f"ended: {', '.join(gone)}")
