"""The terminal of `unskew site run`: one line about each exchange, from the worker's answer, and questions
about waiting studies.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from unskew.errors import UsageError, printable
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.site import approvals

CONNECTED = "connected to the server"
SITE_LEDGER = "spent.json"
SILENT_CODES = ("E522", "E205")
"""A study that waits is announced by itself; a run that this site has forgotten is set up again by itself."""


def terminal_line(folder: Path, answer: SignedMessage) -> str:
    """The result of a request for the site's operator; "" if there is nothing to report. folder: the
    site's.
    """
    try:
        header = json.loads(answer.text)
        run, t, kind = (header.get(name) for name in ("run", "t", "kind"))
        if code := header.get("code"):
            return "" if code in SILENT_CODES else printable(_refusal_line(header))
        if kind == "hello":
            return f"run {run} was told how many samples this site holds, their shape and the classes"
        facts = _run_facts(folder, run)
        rounds = f"round {t} of {facts['rounds']}"
        if kind == "setup":
            return f"run {run} begins: {facts['method']}, {facts['rounds']} rounds"
        if kind == "train":
            return f"run {run}, {rounds}: trained on {header['n']:,.0f} samples{_loss(header.get('loss'))}"
        if kind == "visit":
            return f"run {run}, after {rounds}: sent what the method shares beside the weights"
        if kind in ("share", "agree", "open"):
            return ""  # steps between the training and the next round
        if kind == "mask":
            return f"run {run}, {rounds}: sent masked numbers, of which only the sum over sites can be read"
        if t == facts["rounds"]:
            return f"run {run} is over: {rounds} scored, {facts['bytes'] / 1e6:,.1f} MB have left in all"
        return f"run {run}, {rounds}: scored on this site's test samples"
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        return ""  # a report must not stop an answer


def _refusal_line(header: Mapping[str, Any]) -> str:
    where = f"run {header['run']}" if "run" in header else "a request"
    return f"{where} was not answered: {header['code']} {header.get('text', '')}"


def _loss(loss: Any) -> str:
    """The mean loss; "" for 0, which replaces a loss that is withheld because no noise covers it."""
    return f", mean loss {loss:.4g}" if isinstance(loss, int | float) and loss else ""


def _run_facts(folder: Path, run: str) -> Mapping[str, Any]:
    """The recorded method, rounds and bytes of a run."""
    return json.loads((folder / SITE_LEDGER).read_text())[run]


class Terminal:
    """Standard input while this process is in the foreground; reading in the background would stop the
    site.
    """

    def __init__(self) -> None:
        self._open = True

    def line(self, within_s: float) -> str | None:
        """The next line; None without one, without a terminal in the foreground, and once the terminal is
        closed.
        """
        if not (self._open and _in_foreground()):
            time.sleep(within_s)
            return None
        if not select.select([sys.stdin], [], [], within_s)[0] or not _in_foreground():
            return None
        text = sys.stdin.readline()
        self._open = bool(text)
        return text or None

    def forget(self) -> None:
        if _in_foreground():
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def has_terminal() -> bool:
    """True if a person can answer at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


LOOK_S = 2.0
DECISIONS: dict[str, approvals.State] = {"yes": "approved", "no": "refused"}


class Operator(Protocol):
    """A person at a keyboard."""

    def line(self, within_s: float) -> str | None:
        """The next line that is typed within so many seconds."""
        ...

    def forget(self) -> None:
        """Discard unread input."""
        ...


def decide_at_terminal(
    folder: Path, say: Callable[[str], None], operator: Operator, until: Callable[[], bool] = lambda: False
) -> None:
    """Ask the operator about each waiting study, until told to end. An answer applies only to the study shown
    last.
    """
    asked: approvals.Request | None = None
    while not until():
        waiting = [r for r in reversed(approvals.all_requests(folder)) if r.state == "waiting"]
        if asked and (asked.run, asked.key) not in {(r.run, r.key) for r in waiting}:
            if text := approvals.outcome(folder, asked):  # it was decided elsewhere
                say(text)
            asked = None
        if asked is None and waiting:
            asked = waiting[0]
            say(f"a study asks for this site's data\n{asked.text()}")
            say(
                f"approve it? type yes or no, and Enter (later: unskew site approve {asked.run} --folder"
                f" {shlex.quote(str(folder))})"
            )
            operator.forget()  # input before the question does not answer it
        typed = operator.line(LOOK_S)
        if asked is None or typed is None:
            continue
        state = DECISIONS.get(typed.strip().lower())
        if state is None:
            say("type yes or no, and Enter")
            continue
        try:
            approvals.decide(folder, asked.key, state)
            say(f"{state}  {asked.run}")
        except UsageError as error:
            say(str(error))
        asked = None
