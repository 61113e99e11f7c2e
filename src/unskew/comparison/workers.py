"""Worker processes, each of which trains one run after another on one core, and the interface of pools.

Each run of a comparison is an ordinary run. A worker trains it from the settings in its folder, so that only
text passes between processes, and a comparison that was killed continues where its runs stopped. Workers on
this machine and on the nodes of a cluster have one interface.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from unskew import config
from unskew.comparison.progress import Cell
from unskew.errors import NothingUsed, StateError, UnskewError
from unskew.runs.resolve import resolve
from unskew.runs.run_folder import RunFolder
from unskew.system import disk

LOST = -1000
"""In place of an exit code: the run lost its process or node and continues in another worker from its last
checkpoint."""
MOST_LOSSES = 3
"""The number of losses at one round after which the run itself is considered the cause."""


class RunWorker(Protocol):
    """Trains one run at a time. cell: the current run, or None."""

    cell: Cell | None

    def begin(self, cell: Cell) -> None: ...

    def ended(self) -> int | None:
        """The exit code of the run or LOST; None while it trains."""
        ...

    def stop(self) -> None:
        """End the worker and interrupt its run, which is saved as it trains."""
        ...


class WorkerPool(Protocol):
    """A source of workers. pause_s: the time between two looks at their runs."""

    pause_s: float

    def room(self, count: int) -> bool:
        """Whether there is room for another worker in addition to `count`."""
        ...

    def hire(self, log: Path) -> RunWorker:
        """A new worker. log: the file for the output of its runs."""
        ...

    def close(self) -> None: ...


END_SIGNAL = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a process on purpose. With others, such as SIGKILL for lack of memory, its run is lost."""


class WorkerProcess:
    """A process that trains one run after another, so that torch is loaded once. It reads paths and prints
    exit codes."""

    def __init__(self, log: Path):
        self.log, self.cell = log, None
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab", opener=disk.refuse_link) as errors:
            self.process = subprocess.Popen(
                # -P: no file of this folder is imported
                [sys.executable, "-P", "-m", "unskew.comparison.workers"],
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
        """The exit code of the current run; None while it trains, LOST if its process was killed."""
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
        """End the process and interrupt its current run, which is saved as it trains."""
        if self.process.poll() is None and self.cell:
            self.process.send_signal(signal.SIGINT)
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def write_order(cell: Cell, threads: int) -> str:
    """Write the settings of a run for its worker, and return their text.

    Raises UsageError (E506) for a Python file that only a document names, because the worker imports all.
    """
    cell.settings.check_code()
    disk.folder_below(cell.path)
    text = config.dump(cell.settings.replace(workers=threads))
    disk.replace(cell.path / "wanted.yaml", text)
    return text


def train(path: Path, data: str = "") -> int:
    """Train the run of a folder with the settings in wanted.yaml, and return the exit code. data: the
    required fingerprint of its data; "" for no check."""
    try:
        settings = config.load(path / "wanted.yaml")
        folder = RunFolder(path, resolve(settings))
        check_data_of_node(settings.data, folder.data, data or folder.data)
        folder.go(_log, lambda *_: None)
    except UnskewError as error:
        _log(str(error))
        return error.exit_code
    return 0


def train_here(cell: Cell, shown: Callable[[], None]) -> None:
    """Train a run in this process to its end, and set its exit code. shown: called after every round.

    Raises the error of a run that fails, with its method and seed in the text.
    """
    try:
        folder = RunFolder(cell.path, resolve(cell.settings, *cell.objects))
        folder.go(lambda _: None, lambda *_: shown())
        cell.code = 0
    except NothingUsed as error:
        cell.code = error.exit_code
    except UnskewError as error:
        raise error.at(f"{cell.method}, seed {cell.seed}") from error.__cause__


def check_data_of_node(name: str, here: str, driver: str) -> None:
    """Raises StateError (E172) if the fingerprints of the data on this node and of the driver's differ."""
    if here != driver:
        text = f"on {platform.node()} the data '{name}' are not those that the driver reads"
        remedy = "every node must see the same files, with UNSKEW_DATA as the driver's."
        raise StateError("E172", f"{text}; {remedy}")


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """The loop of a worker process: read a path and a fingerprint from each line, train the run, and print
    its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    with suppress(OSError, AttributeError):  # on Linux: an interrupt for the end of the parent process
        ctypes.CDLL(None).prctl(1, signal.SIGINT)
    # All output but exit codes, such as by a user's model, goes to the log: a number would be read as one.
    codes = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        for line in sys.stdin:
            path, _, data = line.rstrip("\n").rpartition("\t")
            print(train(Path(path), data), file=codes, flush=True)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
