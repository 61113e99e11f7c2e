"""A site's operator decides about studies on the terminal on which the site runs, one study at a time."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from unskew.deploy import approvals
from unskew.errors import UsageError

LOOK_S = 2.0
DECISIONS: dict[str, approvals.State] = {"yes": "approved", "no": "refused"}


class Operator(Protocol):
    """Somebody at a keyboard."""

    def line(self, within_s: float) -> str | None:
        """The next line that is typed within so many seconds."""
        ...

    def forget(self) -> None:
        """Throw away what was typed and not read."""
        ...


def decide_here(
    folder: Path, say: Callable[[str], None], operator: Operator, until: Callable[[], bool] = lambda: False
) -> None:
    """Ask the operator about every study that waits, until told to end. An answer concerns the study last shown alone."""
    asked: approvals.Request | None = None
    while not until():
        waiting = [r for r in reversed(approvals.everything(folder)) if r.state == "waiting"]
        if asked and (asked.run, asked.key) not in {(r.run, r.key) for r in waiting}:
            if text := approvals.outcome(folder, asked):  # it was decided elsewhere
                say(text)
            asked = None
        if asked is None and waiting:
            asked = waiting[0]
            say(f"a study asks for this site's data\n{asked.text()}")
            say(
                f"approve it? type yes or no, and Enter (later: unskew site approve {asked.run} --folder {shlex.quote(str(folder))})"
            )
            operator.forget()  # what was typed before the question is no answer to it
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
