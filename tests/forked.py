"""Workers of a comparison that fork instead of loading torch anew: two seconds less for each.

What only a process of its own can show (what it imports, how it ends with its parent) is tested with real
ones: tests marked `own_process`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import ClassVar, TextIO

from unskew.comparison import workers
from unskew.core.method import Method
from unskew.data import registry
from unskew.runs import conformance


@cache
def warm() -> None:
    """Loads, before the first fork, what the first round of a process loads, so that each fork has it."""
    registry.read("digits")
    conformance.train_run(Method(), rounds=1)


class Process:
    """The part of subprocess.Popen that a Worker uses, for a fork that runs `workers.main`."""

    streams: ClassVar[list[TextIO]] = []
    """Pipes of all workers. A fork closes those it inherits, or an older worker would never see the end of
    its input."""

    def __init__(self, log: Path):
        warm()
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.close(in_write)
            os.close(out_read)
            for stream in self.streams:
                if not stream.closed:
                    os.close(stream.fileno())
            _become_worker(in_read, out_write, log)
        os.close(in_read)
        os.close(out_write)
        self.stdin: TextIO = os.fdopen(in_write, "w")
        self.stdout: TextIO = os.fdopen(out_read, "r")
        self.streams += [self.stdin, self.stdout]

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, sign: int) -> None:
        os.kill(self.pid, sign)


def _become_worker(commands: int, answers: int, log: Path) -> None:
    """In the fork: what `python -m unskew.comparison.workers` does, with a Worker's streams."""
    code = 1
    try:
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream, place in ((commands, 0), (answers, 1), (errors, 2)):
            os.dup2(stream, place)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, "r"), os.fdopen(1, "w"), os.fdopen(2, "w")
        workers.main()
        code = 0
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Worker(workers.WorkerProcess):
    """A Worker whose process is a fork of this one."""

    def __init__(self, log: Path):
        self.log, self.cell = log, None
        log.parent.mkdir(parents=True, exist_ok=True)
        self.process = Process(log)  # type: ignore[assignment]
        os.set_blocking(self.process.stdout.fileno(), False)  # type: ignore[union-attr]
