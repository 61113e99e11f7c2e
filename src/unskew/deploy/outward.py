"""What a site says to its coordinator of an error: no file of the site, whose path tells of users, projects and sometimes
patients, and nothing of an error in its data, which quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unskew import failures
from unskew.deploy.wire import WireError
from unskew.disk import is_full
from unskew.errors import DataError, UnskewError

INSTEAD = "a file of the site"
OF_DATA = "its data cannot be used as they are now; the site's log says more."
MOST_TEXT = 500
"""Characters of an error that leave a site at most."""
_REST = r"[^\s'\",;:()]*"
_ABSOLUTE = re.compile(rf"(?<![\w/.])(?:(?:~|\.{{1,2}})?/|[A-Za-z]:\\)[^\s'\",;:()]{_REST}")


def without_files(text: str, known: Iterable[str], asked: Iterable[str] = ()) -> str:
    """The text without paths. known: how paths of the site begin that may be relative or hold spaces, such as `site/`.

    asked: what the coordinator itself has named, which it may read again.
    """
    for path in sorted(known, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/.]){re.escape(path)}{_REST}", INSTEAD, text)
    named = " ".join(asked)
    return _ABSOLUTE.sub(lambda match: match[0] if match[0] in named else INSTEAD, text)


def told(error: UnskewError | WireError, files: Iterable[str], asked: Mapping[str, Any]) -> str:
    """A text for the coordinator. What it says of this site's files and data, only this site's operator reads.

    files: how paths of the site begin. asked: the header of the request.
    """
    if isinstance(error, DataError):
        return OF_DATA
    settings = asked.get("settings", {})
    named = [str(settings.get(name)) for name in ("model", "method")]
    return without_files(error.text, files, named)[:MOST_TEXT]


def explained(error: Exception, say: Callable[[str], None]) -> UnskewError:
    """The error to answer with. What this site's operator has to mend is said to them as well.

    Of an error that nobody expected only its type is answered: its text may quote this site's files or data.
    """
    if isinstance(error, DataError):
        say(str(error))
        return error
    if isinstance(error, UnskewError) and error.code != "E203":
        return error
    if is_full(error) or isinstance(error, UnskewError):
        known = failures.explained(error)
        say(known.text)
        return known
    say(f"a request failed: {type(error).__name__}: {error}"[:MOST_TEXT])
    return UnskewError("E312", f"{type(error).__name__}; the site's log says more.")
