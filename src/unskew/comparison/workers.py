"""Many runs at once, one process a core.

Each run of a comparison is an ordinary run. A worker process trains it from the settings in its folder, so nothing but
text passes between processes, and a comparison that was killed continues where its runs stopped.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from unskew import config, disk
from unskew.comparison.watch import Cell
from unskew.engine.disk.folder import Folder
from unskew.engine.resolve import resolve
from unskew.errors import Paused, StateError, UnskewError, UsageError


class Worker:
    """A process that trains one run after another, so that torch is loaded once. Paths go in, exit codes come out."""

    def __init__(self, log: Path):
        self.log, self.cell = log, None
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "unskew.comparison.workers"],  # -P: no file of this folder is imported
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
        cell.path.mkdir(exist_ok=True)
        disk.replace(cell.path / "wanted.yaml", config.dump(cell.settings.replace(workers=1)))
        self.cell = cell
        self.process.stdin.write(f"{cell.path}\n")
        self.process.stdin.flush()

    def ended(self) -> int | None:
        """The exit code of the current run, or None while it trains."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line.strip():
            return int(line)
        return self.process.poll()

    def stop(self) -> None:
        """End the process and interrupt its current run, which has been saved after every round."""
        if self.process.poll() is None:
            if self.cell:
                self.process.send_signal(signal.SIGINT)
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def train_all(cells: list[Cell], processes: int, look: Callable[[list[Cell]], None]) -> None:
    """Train all runs, `processes` at a time; `look` is called about twenty times a second.

    An interrupt stops every run after it has been saved. Raises the error of the first run that fails: Paused if it
    can be resumed, else UsageError with its own code, or StateError (E120) if the error has none. A run that its clients
    did not train (E316) is finished and fails nobody else's: tables show that it has no score.
    """
    waiting = [c for c in cells if not c.ended]
    for cell in cells:
        cell.code = None if cell in waiting else 0
        cell.look()
    workers: list[Worker] = []
    try:
        while waiting or any(w.cell for w in workers):
            if waiting and len(workers) < processes and all(w.cell for w in workers):
                workers.append(Worker(waiting[0].path.parent / "log.txt"))
            for worker in workers:
                if worker.cell is None and waiting:
                    worker.begin(waiting.pop(0))
                if worker.cell:
                    worker.cell.look()
                    _settle(worker)
            look(cells)
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.stop()


def _settle(worker: Worker) -> None:
    cell, code = worker.cell, worker.ended()
    if cell is None or code is None:
        return
    cell.code, worker.cell = code, None
    cell.look()
    if not cell.done:
        raise _failure(cell)


def _failure(cell: Cell) -> Exception:
    log = cell.path.parent / "log.txt"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = lines[-1] if lines else f"it ended with code {cell.code} and said nothing"
    if match := re.match(r"(E\d{3}) (.*)", said):
        kind = Paused if cell.code == Paused.exit_code else UsageError
        return kind(match[1], f"{cell.method}, seed {cell.seed}: {match[2]}")
    return StateError("E120", f"{cell.method}, seed {cell.seed} failed: {said} (all of it: {log})")


def _end_with_parent() -> None:
    """On Linux, ask for an interrupt when the parent process ends, however it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def train(path: Path) -> int:
    """Train the run of a folder, whose settings are in wanted.yaml. Returns the exit code."""
    try:
        settings = config.load(path / "wanted.yaml")
        Folder(path, resolve(settings)).go(_log, lambda *_: None)
    except UnskewError as error:
        _log(str(error))
        return error.exit_code
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """What a worker process does: read one path a line, train the run, and print its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    _end_with_parent()
    try:
        for line in sys.stdin:
            print(train(Path(line.rstrip("\n"))), flush=True)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
