"""What a run says about its sites: on the coordinator's screen, and as events of its record once there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unskew.engine.disk.record import Record


@dataclass
class Notices:
    """Called with a round, the code of an error and a sentence. record: None until the run has been opened."""

    say: Callable[[str], None]
    record: Record | None = None

    def __call__(self, t: int, code: str, text: str) -> None:
        if self.record:
            self.record.add("events", [{"t": t, "code": code, "text": text}])
        self.say(f"{code} {text}")
