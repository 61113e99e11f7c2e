"""What a run says about its sites: on the coordinator's screen, and as events of its record once there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unskew.engine.disk.lines import Row
from unskew.engine.disk.record import Record


@dataclass
class Notices:
    """Called with a round, the code of an error and a sentence. What is said before the record is open follows then."""

    say: Callable[[str], None]
    _record: Record | None = None
    _before: list[Row] = field(default_factory=list)

    def __call__(self, t: int, code: str, text: str) -> None:
        event: Row = {"t": t, "code": code, "text": text}
        if self._record:
            self._record.add("events", [event])
        else:
            self._before.append(event)
        self.say(f"{code} {text}")

    def open(self, record: Record) -> None:
        """From now on, keep everything as events of this record."""
        self._record = record
        record.add("events", self._before)
        self._before = []
