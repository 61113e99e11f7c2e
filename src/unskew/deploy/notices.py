"""What a run says about its sites: on the coordinator's screen, and as events of its record once there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unskew.engine.disk.lines import Row
from unskew.engine.disk.record import Record
from unskew.errors import printable

IN_EVERY_ROUND = ("E315",)
"""A merge that does less than it promises with so few replies says so of each round."""


@dataclass
class Notices:
    """Called with a round, the code of an error and a sentence. What is said before the record is open follows then."""

    say: Callable[[str], None]
    _record: Record | None = None
    _before: list[Row] = field(default_factory=list)
    _heard: set[str] = field(default_factory=set)

    def __call__(self, t: int, code: str, text: str) -> None:
        text = printable(text)  # a site names its tensors, and a name may hold a line that looks like another of ours
        event: Row = {"t": t, "code": code, "text": text}
        if self._record:
            self._record.add("events", [event])
        else:
            self._before.append(event)
        self.say(f"{code} {text}")

    def heard(self, t: int, code: str, text: str) -> None:
        """Say what the server's loop has written into the record. What it wrote before round 1 has been shown, and what holds
        in every round is said in the first."""
        if t and not (code in IN_EVERY_ROUND and code in self._heard):
            self.say(f"{code} {text}")
        self._heard.add(code)

    def open(self, record: Record) -> None:
        """From now on, keep everything as events of this record."""
        self._record = record
        record.add("events", self._before)
        self._before = []
