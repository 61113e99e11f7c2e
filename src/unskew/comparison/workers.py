"""Worker processes, each of which trains one run of a comparison after another on one core.

A worker trains an ordinary run from the settings in its folder, so that only text passes between processes,
and a comparison that was killed continues where its runs stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from unskew import config
from unskew.comparison.progress import Cell
from unskew.errors import NothingUsed, UnskewError
from unskew.runs.resolve import resolve
from unskew.runs.run_folder import RunFolder
from unskew.system import disk


class WorkerProcess:
    """A process that trains one run after another, so that torch is loaded once. It reads paths and prints
    exit codes. log: the file for its messages. cell: the current run, or None."""

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
        write_order(cell)
        self.cell = cell
        with suppress(BrokenPipeError):  # it was killed between two runs, as `ended` finds
            self.process.stdin.write(f"{cell.path}\n")
            self.process.stdin.flush()

    def ended(self) -> int | None:
        """The exit code of the current run; None while it trains, and the negative number of a signal that
        killed the process."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return int(line) if line.strip() else self.process.poll()

    def stop(self) -> None:
        """End the process and interrupt its current run, which is saved as it trains."""
        if self.process.poll() is None and self.cell:
            self.process.send_signal(signal.SIGINT)
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def write_order(cell: Cell) -> None:
    """Write the settings of a run for its worker. Raises UsageError (E506) for a Python file that only a
    document names, because the worker imports all."""
    cell.settings.check_code()
    disk.folder_below(cell.path)
    disk.replace(cell.path / "wanted.yaml", config.dump(cell.settings.replace(workers=1)))


def train(path: Path) -> int:
    """Train the run of a folder with the settings in wanted.yaml, and return the exit code."""
    try:
        folder = RunFolder(path, resolve(config.load(path / "wanted.yaml")))
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


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """The loop of a worker process: read a path from each line, train its run, and print its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    with suppress(OSError, AttributeError):  # on Linux: an interrupt for the end of the parent process
        ctypes.CDLL(None).prctl(1, signal.SIGINT)
    # All output but exit codes, such as by a user's model, goes to the log: a number would be read as one.
    codes = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        for line in sys.stdin:
            print(train(Path(line.rstrip("\n"))), file=codes, flush=True)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
