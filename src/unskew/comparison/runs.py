"""Runs by their folders: which version of unskew began them, and how they are removed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from unskew.engine.disk.folder import maker
from unskew.engine.disk.lock import Lock
from unskew.revision import revision


def makers(paths: Iterable[Path]) -> dict[str, int]:
    """How many of these runs each version of unskew began; runs that have not begun do not count."""
    return dict(sorted(Counter(version for path in set(paths) if (version := maker(path))).items()))


def by_others(paths: Iterable[Path]) -> list[Path]:
    """Those of the runs that another version of unskew than this one began."""
    return [path for path in paths if maker(path) not in ("", revision())]


def discard(paths: Iterable[Path]) -> None:
    """Remove runs, one after another. Raises StateError (E110) for one in use, which stays."""
    for path in paths:
        with Lock(path):
            shutil.rmtree(path)
