"""Programs that are started again when they end or give up."""

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
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
Say = Callable[[str], None]


@dataclass
class Kept:
    """A program that is started again when it ends. log: where its output goes.

    last_words: what it may log when it gives up, where its process may stay for ever all the same.
    """

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    last_words: tuple[bytes, ...] = ()
    process: subprocess.Popen | None = None
    not_before: float = 0.0
    starts: int = 0
    _read: int = 0
    _gave_up: float = 0.0

    def look(self, say: Say) -> int | None:
        """Start it if it is not running. Its exit code, when it has just ended."""
        if self.process and (code := self.process.poll()) is not None:
            self.process, self.not_before = None, time.monotonic() + BACK_OFF_S
            say(f"{self.name} ended with code {code}; it is started again. Log: {self.log}")
            return code
        if self.process and self._gave_up_long_ago():
            self.stop()
            say(f"{self.name} gave up its connection; it is started again. Log: {self.log}")
            return 1
        if self.process is None and time.monotonic() >= self.not_before:
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
        return None

    def _gave_up_long_ago(self) -> bool:
        """Whether it has said its last words and had time to end since."""
        if not self.last_words:
            return False
        if not self._gave_up:
            with open(self.log, "rb") as log:
                log.seek(self._read)
                fresh = log.read()
            self._read += max(0, len(fresh) - max(map(len, self.last_words)))  # they may be half written
            self._gave_up = time.monotonic() if any(words in fresh for words in self.last_words) else 0.0
        return bool(self._gave_up) and time.monotonic() > self._gave_up + BACK_OFF_S

    def stop(self, grace_s: float = 10.0) -> None:
        """The program and what it has started, politely and then not."""
        if self.process is None:
            return
        for number, wait in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                break
        self.process = None


@dataclass
class Rarely:
    """Says the same sentence again only after a while: a network may be gone for a night."""

    say: Say
    every_s: float = 60.0
    _said: dict[str, float] = field(default_factory=dict)

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._said.get(text, -self.every_s) + self.every_s:
            self._said[text] = now
            self.say(text)


@contextlib.contextmanager
def kept(*programs: Kept) -> Iterator[None]:
    """They are stopped at the end, whatever ends it, and however often we are told to end meanwhile."""
    try:
        yield
    finally:
        with _undisturbed():
            for program in programs:
                program.stop()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Interrupt and termination do nothing meanwhile. Only the main thread hears of them anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Linux ends the program with the thread that started it, so also when we are killed; elsewhere it would stay."""
    if _LIBC:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
