"""Which unskew this is: what a run and a published result say they were made by."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from unskew.version import __version__


@cache
def revision(root: Path = Path(__file__).parents[2]) -> str:
    """`0.1.0`; where unskew runs from a checkout of its own `0.1.0+a27cd8a`, and `.changed` after it beside uncommitted work.

    Two uncommitted states of one commit are not told apart. root: the folder above `src`. An installed unskew lies in no
    checkout of its own, even where a user's project does.
    """
    if not (root / ".git").exists():
        return __version__
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if not commit:
        return __version__
    changed = ".changed" if _git(root, "status", "--porcelain", "--", "src") else ""
    return f"{__version__}+{commit}{changed}"


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
