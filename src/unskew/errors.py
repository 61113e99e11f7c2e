"""Errors are sentences with a code: what is wrong, where, and what to do.

Codes: E1xx wrong use, E2xx state on disk, E3xx replies of clients, E4xx data, E5xx sites and servers.
docs/errors.md has a paragraph for each.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Self


def printable(text: str) -> str:
    """A text on one line, its control characters escaped as Python writes them, so that it cannot move a
    cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class UnskewError(Exception):
    """An error that the user can act on. `exit_code`: the exit code of the command line.

    Control characters in the text are escaped.
    """

    exit_code = 2

    def __init__(self, code: str, text: str):
        text = printable(text)
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text

    def at(self, place: str) -> Self:
        """The error itself, with a place in front of its text."""
        self.text = f"{place}: {self.text}"
        self.args = (f"{self.code} {self.text}",)
        return self


class UsageError(UnskewError):
    """Wrong use: an unknown key, a value out of range, or a combination that makes no sense."""

    exit_code = 2


class MissingPackage(UsageError):
    """An optional package that is not installed. what: the feature that needs it. extra: the extra of unskew
    that installs it, if one does. instead: what does without it.
    """

    def __init__(self, what: str, package: str, extra: str = "", instead: str = ""):
        install = f"'unskew[{extra}]'" if extra else package
        ending = f"; {instead}" if instead else ""
        super().__init__("E133", f"{what} needs {package}: pip install {install}{ending}.")


class UnknownMethod(UsageError):
    """A method's text holds a name that no method here has. name: that one."""

    def __init__(self, name: str, text: str):
        super().__init__("E102", text)
        self.name = name


class DataError(UnskewError):
    """Data that are missing, cut off, of the wrong shape, or unfit for training."""


class StateError(UnskewError):
    """A folder of a run that is in use, damaged, or holds another configuration."""


class NothingUsed(UnskewError):
    """A run came to its end, but so few replies of clients were used that its weights are no result."""

    exit_code = 4


class Paused(UnskewError):
    """The run stopped but can be resumed, for example after the disk was full."""

    exit_code = 75


class Terminated(BaseException):
    """The process received SIGTERM. Not a KeyboardInterrupt, so that handlers of Ctrl-C do not catch it."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """' Did you mean 'x'?' for the known word nearest to this one, ignoring case; '' if none is near.

    A user who writes `non-iid` did not mean `iid`.
    """
    opposite = word.lower().removeprefix("non").lstrip("-_ ")
    written = {name.lower(): name for name in known if opposite == word.lower() or name.lower() != opposite}
    near = difflib.get_close_matches(word.lower(), list(written), n=1, cutoff=0.6)
    return f" Did you mean '{written[near[0]]}'?" if near else ""


def excerpt(value: object, most: int = 80) -> str:
    """A value as Python writes it, on one line and cut to `most` characters, for use in an error message.

    `repr` escapes control characters, so nothing that a user or a site supplies can move the terminal's
    cursor.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def docs_folder() -> Path:
    """The folder of the documentation's pages, in the installed package or in a checkout."""
    package = Path(str(resources.files("unskew")))
    return package / "docs" if (package / "docs").is_dir() else package.parents[1] / "docs"


@functools.cache
def code_pages() -> dict[str, str]:
    """Maps each code to what it means and what to do about it, from docs/errors.md."""
    text = (docs_folder() / "errors.md").read_text(encoding="utf-8")
    entries = (part.partition("\n") for part in text.split("\n### ")[1:])
    return {code: page.partition("\n## ")[0].strip() for code, _, page in entries}
