"""What a site says to its coordinator names no file of the site: paths tell of users, projects and sometimes patients."""

from __future__ import annotations

import re
from collections.abc import Iterable

INSTEAD = "a file of the site"
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
