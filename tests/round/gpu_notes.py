"""What happens on pretended GPUs (`pretended`), and how they refuse."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Mixed(RuntimeError):
    """What torch says of tensors on two devices."""


class Waits(RuntimeError):
    """What torch says of an operation that waits, where none may."""


@dataclass
class Notes:
    """What happened on the pretended GPUs. waits: where the host waited. unpinned: copies that did not wait,
    from memory that
    is not pinned. forbidden, tape: of each thread, whether waiting raises, and the recording in progress."""

    waits: list[str] = field(default_factory=list)
    unpinned: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    allocates: Callable[[int], None] = lambda numbers: None
    thread: threading.local = field(default_factory=threading.local)

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        """In place of `torch.cuda.device`."""
        before, self.thread.current = getattr(self.thread, "current", 0), number
        try:
            yield
        finally:
            self.thread.current = before

    def wait(self, what: str) -> None:
        at = place()
        if getattr(self.thread, "tape", None) is not None:
            raise Waits(f"operation not permitted when stream is capturing: {what} at {at}")
        if getattr(self.thread, "forbidden", False):
            raise Waits(f"called a synchronizing operation: {what} at {at}")
        self.waits.append(f"{at}: {what}")


NOTES = Notes()


def place() -> str:
    """The line of the package that is being run."""
    frame = sys._getframe(1)
    while frame.f_back and "/unskew/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/unskew/')[2]}:{frame.f_lineno}"
