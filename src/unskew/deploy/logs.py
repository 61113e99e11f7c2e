"""What a program says and what its children print: lines of text, or one JSON object a line, in files of bounded size.

A child's output goes through a pipe to its supervisor, because a file that somebody else holds open cannot be rotated
without losing lines. A journal is never written here, so nothing that vouches for a run is ever rotated away.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Literal

from unskew.errors import printable
from unskew.failures import explained

Form = Literal["text", "json"]
MOST_BYTES, KEPT = 10 << 20, 4
"""A log file grows to so many bytes, and so many older ones are kept beside it: NAME.1 is the youngest of them."""
MOST_LINE = 64 << 10
"""A longer line of a child is cut into several."""
CODE = re.compile(r"(E\d{3}) (.*)", re.DOTALL)


@dataclass(frozen=True)
class Log:
    """Prints sentences. facts: what stands in every JSON object, such as the program's name.

    timed: whether a line of text begins with the time; JSON always has it, in UTC.
    """

    form: Form
    facts: Mapping[str, str]
    timed: bool = False

    def __call__(self, text: str) -> None:
        with suppress(OSError):  # a full disk under a log must not end its program
            print(self.written(text), flush=True)

    def written(self, text: str) -> str:
        """The line, or in the text form the lines, for a sentence."""
        if self.form == "text":
            return f"{time.strftime('%H:%M:%S')} {text}" if self.timed else text
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        coded = CODE.match(text)
        code = {"code": coded[1]} if coded else {}
        level = "warning" if coded else "info"
        return json.dumps({"time": now, "level": level, **self.facts, **code, "text": coded[2] if coded else text})

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Within it, an error that ends the program is an object of the log, too. Raises SystemExit with its exit code."""
        try:
            yield
        except Exception as error:
            if self.form == "text":
                raise
            shown = explained(error)
            self(str(shown))
            raise SystemExit(shown.exit_code) from error


class LogFile(RotatingFileHandler):
    """A log file of bounded size. Whatever happens to it, whoever writes to it goes on."""

    def __init__(self, path: Path):
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8", errors="replace", delay=True)

    def add(self, line: str) -> None:
        self.handle(logging.makeLogRecord({"msg": line}))

    def handleError(self, record: logging.LogRecord) -> None:
        """Open the file anew for the next line: the disk may have space again."""
        if self.stream:
            with suppress(OSError):
                self.stream.close()
        self.stream = None  # which logging takes for a file that is not open yet


@functools.cache
def log_file(path: Path) -> LogFile:
    """One for each path: two would rotate it under each other's feet."""
    return LogFile(path)


def keep(pipe: IO[bytes], path: Path, log: Log, seen: Callable[[str], None]) -> None:
    """Write a child's output to a log file until the child closes it. seen: is given each line as the child wrote it."""
    file = log_file(path)
    with pipe, closing(file):  # which opens again for the next line of whoever shares it
        for piece in iter(functools.partial(pipe.readline, MOST_LINE), b""):
            line = piece.decode(errors="replace").rstrip("\n")
            file.add(log.written(printable(line) if log.form == "json" else line))
            seen(line)


def last_error(path: Path) -> tuple[str, str] | None:
    """Code and sentence of the last error in a program's log, of either form."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    for line in reversed(lines):
        if line.startswith("{"):
            with suppress(ValueError, KeyError):
                facts = json.loads(line)
                return facts["code"], facts["text"]
        elif coded := CODE.match(line):
            return coded[1], coded[2]
    return None
