"""Clocks of processes that can be moved while they run, by a small library that is loaded before all others
(clock.c)."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.cases import CannotTry

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
