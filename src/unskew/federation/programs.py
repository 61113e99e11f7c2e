"""Programs that are started and restarted: their logs, environment, and use of memory.

The output of a program goes through a pipe to its supervisor, because a file that another process has open
cannot be rotated without losing lines. Journals are never written here, so no evidence about a run is rotated
away.

In the environment Flower's telemetry, its update check and its installation of packages at run time are
disabled, and it writes only below the federation's or the site's folder.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Protocol

from unskew.errors import printable

Say = Callable[[str], None]
MOST_BYTES, OLD_FILES = 10 << 20, 4
"""Largest size of a log file in bytes, and the number of older files: NAME.1 is the youngest of
them."""
MOST_LINE = 64 << 10
"""A longer line of a child is cut into several."""
CODE = re.compile(r"(E\d{3}) (.*)", re.DOTALL)


def echo(text: str) -> None:
    """Print a sentence at once. A full disk under the output does not end the program."""
    with suppress(OSError):
        print(text, flush=True)


def echo_timed(text: str) -> None:
    """Print a sentence after the time of day."""
    echo(f"{time.strftime('%H:%M:%S')} {text}")


class LogFile(RotatingFileHandler):
    """A log file of bounded size. Errors of the file never reach its writer."""

    def __init__(self, path: Path):
        super().__init__(
            path, maxBytes=MOST_BYTES, backupCount=OLD_FILES, encoding="utf-8", errors="replace", delay=True
        )

    def handleError(self, record: logging.LogRecord) -> None:
        """Reopen the file for the next line, because the disk may have space again."""
        if self.stream:
            with suppress(OSError):
                self.stream.close()
        self.stream = None  # which logging takes for a file that is not open yet


@functools.cache
def log_file(path: Path) -> LogFile:
    """The only LogFile of a path; two would interfere with each other's rotation."""
    return LogFile(path)


def keep_output(pipe: IO[bytes], path: Path, seen: Callable[[str], None]) -> None:
    """Write a child's output to a log file until it closes it. seen: receives each line as it was written."""
    file = log_file(path)
    with pipe, closing(file):  # the shared file opens again for the next line
        for piece in iter(functools.partial(pipe.readline, MOST_LINE), b""):
            line = piece.decode(errors="replace").rstrip("\n")
            # it may quote what a coordinator or a site wrote
            file.handle(logging.makeLogRecord({"msg": printable(line)}))
            seen(line)


def last_error(path: Path) -> tuple[str, str] | None:
    """Code and sentence of the last error in a program's log."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next(((m[1], m[2]) for line in reversed(lines) if (m := CODE.match(line))), None)


BACK_OFF_S = 0.5
"""Seconds before the first restart, doubled before each further one, at most
MOST_BACK_OFF_S."""
MOST_BACK_OFF_S = 5.0
STEADY_S = 60.0
"""A program that has run for this many seconds is restarted without further delay."""
OUTPUT_WAIT_S = 2.0
"""Longest wait in seconds for the last output of an ended program."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


@dataclass
class Program:
    """A program that is restarted when it ends. log: the file of its output. seen: receives each line of it.

    hopeless: exit codes after which the owner gives the program up, so that no restart is announced.
    """

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    seen: Callable[[str], None] = lambda line: None
    hopeless: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    not_before: float = 0.0
    starts: int = 0
    _started: float = 0.0
    _keeper: threading.Thread | None = None
    _quick: int = 0
    """Number of quick ends in a row."""

    @property
    def code(self) -> int | None:
        """The exit code of a process that has ended and was not restarted."""
        return self.process.poll() if self.process else None

    def tend(self, say: Say) -> int | None:
        """Start the program if it is not running. Returns its exit code if it has just ended."""
        if self.process and (code := self.process.poll()) is not None:
            self._join_output()
            now = time.monotonic()
            self._quick = 0 if now - self._started >= STEADY_S else self._quick + 1
            self.process, self.not_before = None, now + min(MOST_BACK_OFF_S, BACK_OFF_S * 2**self._quick)
            if code not in self.hopeless:
                say(f"{self.name} ended with code {code} and will be restarted. Log: {self.log}")
            return code
        if self.process is None and time.monotonic() >= self.not_before:
            self._start()
        return None

    def _start(self) -> None:
        with suppress(OSError):
            self.log.touch()  # messages name it, whether or not anything is printed
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self._keeper = threading.Thread(
            target=keep_output, args=(self.process.stdout, self.log, self.seen), daemon=True
        )
        self._keeper.start()
        self.starts += 1
        self._started = time.monotonic()

    def _join_output(self) -> None:
        """Wait until the output of a process that has ended is stored."""
        if self._keeper:
            self._keeper.join(OUTPUT_WAIT_S)

    def stop(self, grace_s: float = 10.0) -> None:
        """End the program and all its descendants: terminate, then kill after `grace_s` seconds."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        self._join_output()
        self.process = None


@dataclass
class RareSay:
    """Passes on each sentence at most once in `every_s` seconds, because an outage may last for hours.

    always: a sentence with this beginning is always passed on, and resets all others.
    """

    say: Say
    every_s: float = 60.0
    always: str = "\0"
    _last: dict[str, float] = field(default_factory=dict)

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if text.startswith(self.always):
            self._last.clear()
        if now >= self._last.get(text, -self.every_s) + self.every_s:
            self._last[text] = now
            self.say(text)


class Stoppable(Protocol):
    """One program, or an object that runs several."""

    def stop(self) -> None: ...


@contextmanager
def stop_at_end(*programs: Stoppable) -> Iterator[None]:
    """Stop these programs in order at the end of the block, without interruption by signals.

    Only the main thread receives signals.
    """
    try:
        yield
    finally:
        handlers = dict[int, Any]()
        if threading.current_thread() is threading.main_thread():
            handlers = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            for program in programs:
                program.stop()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _end_with_parent() -> None:
    """Let Linux end the program together with the thread that started it, even if that is killed."""
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


FLOWER_SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
BIN = Path(sys.executable).parent


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's programs, which write only below `home` and use this Python's commands."""
    home.mkdir(parents=True, exist_ok=True)
    places = {"FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ.get('PATH', '')}"}
    return {**os.environ, **FLOWER_SWITCHES, **places, **more}


_MALLOC_OPTIONS = ((-3, 1 << 20), (-8, 2))
"""glibc's M_MMAP_THRESHOLD and M_ARENA_MAX: else blocks of megabytes stay in the heaps of a dozen threads."""


def configure_malloc() -> None:
    """Make glibc return freed large blocks; no effect elsewhere. Call it before other threads start."""
    if platform.libc_ver()[0] == "glibc":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in _MALLOC_OPTIONS:
                mallopt(option, value)
