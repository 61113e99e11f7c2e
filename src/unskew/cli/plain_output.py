"""Output of commands on a terminal: control characters in any text are escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from unskew.errors import printable

KEPT = "\t\n\xa0\u202f"
"""Characters that our own texts use although Python does not call them printable."""


class PlainText:
    """A text stream that escapes all control characters except for those in KEPT.

    raw: the stream below it, for our own sequences that move the cursor.
    """

    def __init__(self, raw: TextIO):
        self.raw = raw

    def write(self, text: str) -> int:
        if not text.isprintable():
            text = "".join(c if c in KEPT else printable(c) for c in text)
        return self.raw.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Inside the block, both standard streams are PlainText."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = PlainText(sys.stdout), PlainText(sys.stderr)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw_output() -> TextIO:
    """Standard output without escapes; every text that is written to it must be printable."""
    return raw_stream(sys.stdout)


def raw_stream(stream: TextIO) -> TextIO:
    """A standard stream without escapes, as `raw_output`."""
    return stream.raw if isinstance(stream, PlainText) else stream
