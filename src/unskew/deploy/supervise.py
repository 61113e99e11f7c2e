"""Programs that are restarted when they end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from unskew.deploy import logs

BACK_OFF_S = 0.5
"""How long to wait before the first restart; before each further one twice as long, at most MOST_BACK_OFF_S."""
MOST_BACK_OFF_S = 5.0
STEADY_S = 60.0
"""A program that has run so long is restarted as if for the first time."""
LAST_WORDS_S = 2.0
"""How long the last output of a program that has ended is waited for."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
Say = Callable[[str], None]


@dataclass
class Program:
    """A program that is restarted when it ends. log: the file that keeps its output. seen: is given each line of it.

    hopeless: exit codes after which its owner gives it up, so that nobody is told of a restart.
    """

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    form: logs.Form = "text"
    seen: Callable[[str], None] = lambda line: None
    hopeless: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    not_before: float = 0.0
    starts: int = 0
    _started: float = 0.0
    _keeper: threading.Thread | None = None
    _quick: int = 0
    """How often in a row it has ended soon after its start."""

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.starts - 1)

    @property
    def code(self) -> int | None:
        """The exit code of a process that has ended and was not started again."""
        return self.process.poll() if self.process else None

    def tend(self, say: Say) -> int | None:
        """Start it if it is not running. Returns its exit code if it has just ended."""
        if self.process and (code := self.process.poll()) is not None:
            self._hear_out()
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
        with contextlib.suppress(OSError):
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
        written = logs.Log(self.form, {"program": self.name})
        self._keeper = threading.Thread(
            target=logs.keep, args=(self.process.stdout, self.log, written, self.seen), daemon=True
        )
        self._keeper.start()
        self.starts += 1
        self._started = time.monotonic()

    def _hear_out(self) -> None:
        """Wait until the output of a process that has ended is kept."""
        if self._keeper:
            self._keeper.join(LAST_WORDS_S)

    def stop(self, grace_s: float = 10.0) -> None:
        """End the program and everything it has started: ask first, then kill what is left after `grace_s`."""
        if self.process is None:
            return
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                break
        self._hear_out()
        self.process = None


@dataclass
class Rarely:
    """Passes on a sentence at most once in `every_s` seconds: a network may be down for a whole night.

    always: a sentence that begins so is passed on each time, and whatever was said before it is news again after it.
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
    """One program, or something that runs several."""

    def stop(self) -> None: ...


@contextlib.contextmanager
def stopped_at_the_end(*programs: Stoppable) -> Iterator[None]:
    """Stop these programs, in this order, however the block ends, and however often we are signalled meanwhile."""
    try:
        yield
    finally:
        with _signals_ignored():
            for program in programs:
                program.stop()


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM inside the block. Only the main thread receives them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Let Linux end the program together with the thread that started it, even if that is killed."""
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
