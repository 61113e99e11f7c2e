"""Programs that are restarted when they end or lose their connection for good."""

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

BACK_OFF_S = 5.0
"""How long to wait before a restart."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
Say = Callable[[str], None]


@dataclass
class Program:
    """A program that is restarted when it ends. log: where its output goes.

    last_words: what it logs when it gives up, because its process may stay alive without doing anything.
    """

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    last_words: tuple[bytes, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    not_before: float = 0.0
    starts: int = 0
    _read: int = 0
    _gave_up: float = 0.0

    def tend(self, say: Say) -> int | None:
        """Start it if it is not running. Returns its exit code if it has just ended, 1 if it had given up."""
        if self.process and (code := self.process.poll()) is not None:
            self.process, self.not_before = None, time.monotonic() + BACK_OFF_S
            say(f"{self.name} ended with code {code} and will be restarted. Log: {self.log}")
            return code
        if self.process and self._gave_up_long_ago():
            self.stop()
            say(f"{self.name} gave up its connection and will be restarted. Log: {self.log}")
            return 1
        if self.process is None and time.monotonic() >= self.not_before:
            self._start()
        return None

    def _start(self) -> None:
        with open(self.log, "ab") as log:
            self._read, self._gave_up = log.tell(), 0.0
            self.process = subprocess.Popen(
                self.command,
                env=dict(self.env),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.starts += 1

    def _gave_up_long_ago(self) -> bool:
        """Whether it has logged its last words and has had time to end since."""
        if not self.last_words:
            return False
        if not self._gave_up:
            with open(self.log, "rb") as log:
                log.seek(self._read)
                fresh = log.read()
            self._read += max(0, len(fresh) - max(map(len, self.last_words)))  # the words may be half written
            self._gave_up = time.monotonic() if any(words in fresh for words in self.last_words) else 0.0
        return bool(self._gave_up) and time.monotonic() > self._gave_up + BACK_OFF_S

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
        self.process = None


@dataclass
class Rarely:
    """Passes on a sentence at most once in `every_s` seconds: a network may be down for a whole night."""

    say: Say
    every_s: float = 60.0
    _last: dict[str, float] = field(default_factory=dict)

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._last.get(text, -self.every_s) + self.every_s:
            self._last[text] = now
            self.say(text)


@contextlib.contextmanager
def stopped_at_the_end(*programs: Program) -> Iterator[None]:
    """Stop these programs however the block ends, and however often we are signalled meanwhile."""
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
