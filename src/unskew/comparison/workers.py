"""Worker processes, each of which trains one run after another on a core of its own, and what a pool of
workers has to offer.

Each run of a comparison is an ordinary run. A worker process trains it from the settings in its folder, so
nothing but text passes between processes, and a comparison that was killed continues where its runs stopped.
The loop over runs asks the same of workers on this machine and on the nodes of a cluster.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from unskew import config
from unskew.comparison.progress import Cell
from unskew.errors import StateError, UnskewError
from unskew.runs.resolve import resolve
from unskew.runs.run_folder import RunFolder
from unskew.system import disk

LOST = -1000
"""In place of an exit code: the run's process or node is gone, and the run goes on elsewhere from its last
checkpoint."""
MOST_LOSSES = 3
"""How often a run may be lost at one round before it is held to be the cause."""


class RunWorker(Protocol):
    """Trains one run at a time. cell: the run; None when there is none."""

    cell: Cell | None

    def begin(self, cell: Cell) -> None: ...

    def ended(self) -> int | None:
        """The exit code of the run or LOST; None while it trains."""
        ...

    def stop(self) -> None:
        """End it and interrupt its run, which is saved after every round."""
        ...


class WorkerPool(Protocol):
    """Where hands come from. pause_s: between two looks at them."""

    pause_s: float

    def room(self, hands: int) -> bool:
        """Whether there is room for another beside so many."""
        ...

    def hire(self, log: Path) -> RunWorker:
        """Another hand. log: the file for what its runs say."""
        ...

    def close(self) -> None: ...


class Losses:
    """Counts how often each run was lost since its last finished round."""

    def __init__(self) -> None:
        self._count: Counter[tuple[Path, int]] = Counter()

    def count(self, cell: Cell) -> None:
        """Raises StateError (E174) for a run that is lost again and again without getting on."""
        self._count[cell.path, cell.t] += 1
        if (times := self._count[cell.path, cell.t]) >= MOST_LOSSES:
            where = f"{cell.method}, seed {cell.seed}: its process died {times} times after round {cell.t}"
            log = cell.path.parent / "log.txt"
            raise StateError("E174", f"{where}, most often for want of memory. What it said: {log}.")


END_SIGNAL = (signal.SIGINT, signal.SIGTERM)
"""Signals with which somebody ends a process on purpose; others, such as the SIGKILL of a machine without
memory, lose its run."""


class WorkerProcess:
    """A process that trains one run after another, so that torch is loaded once. Paths go in, exit codes come
    out."""

    def __init__(self, log: Path):
        self.log, self.cell = log, None
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab", opener=disk.refuse_link) as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "unskew.comparison.workers",
                ],  # -P: no file of this folder is imported
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)

    cell: Cell | None

    def begin(self, cell: Cell) -> None:
        assert self.process.stdin
        write_order(cell, 1)
        self.cell = cell
        with suppress(BrokenPipeError):  # it was killed between two runs, as `ended` finds
            self.process.stdin.write(f"{cell.path}\t\n")
            self.process.stdin.flush()

    def ended(self) -> int | None:
        """The exit code of the current run, None while it trains, LOST where something has killed the
        process."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line.strip():
            return int(line)
        code = self.process.poll()
        if code is None or code >= 0 or -code in END_SIGNAL:
            return code
        assert self.cell
        with open(self.log, "a", encoding="utf-8", opener=disk.refuse_link) as log:
            log.write(
                f"{self.cell.method}, seed {self.cell.seed} was lost: its process died of"
                f" {signal.Signals(-code).name}\n"
            )
        return LOST

    def stop(self) -> None:
        """End the process and interrupt its current run, which has been saved after every round."""
        if self.process.poll() is None and self.cell:
            self.process.send_signal(signal.SIGINT)
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def write_order(cell: Cell, threads: int) -> str:
    """Write what a run is to be, where its worker reads it. Returns what was written.

    Raises UsageError (E506) for a Python file that only a document names: the worker imports whatever is
    ordered.
    """
    cell.settings.check_code()
    cell.path.mkdir(parents=True, exist_ok=True)
    text = config.dump(cell.settings.replace(workers=threads))
    disk.replace(cell.path / "wanted.yaml", text)
    return text


def _end_with_parent() -> None:
    """On Linux, ask for an interrupt when the parent process ends, however it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def train(path: Path, data: str = "") -> int:
    """Train the run of a folder, whose settings are in wanted.yaml. Returns the exit code.

    data: the fingerprint that its data must have; "" if nobody asks.
    """
    try:
        settings = config.load(path / "wanted.yaml")
        folder = RunFolder(path, resolve(settings))
        if data and folder.data != data:
            here = f"on {platform.node()} the data '{settings.data}' are not those that the driver reads"
            raise StateError(
                "E173", f"{here}; every node must see the same files, with UNSKEW_DATA as the driver's."
            )
        folder.go(_log, lambda *_: None)
    except UnskewError as error:
        _log(str(error))
        return error.exit_code
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _exit_codes_only() -> TextIO:
    """The standard output as it was, for exit codes. Whatever else is printed from now on, such as by a
    user's own model,
    goes to the log: a number there would be taken for the code of a run."""
    codes = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return codes


def main() -> None:
    """What a worker process does: read a path and a fingerprint from each line, train the run, and print its
    exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    _end_with_parent()
    codes = _exit_codes_only()
    try:
        for line in sys.stdin:
            path, _, data = line.rstrip("\n").rpartition("\t")
            print(train(Path(path), data), file=codes, flush=True)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
