"""The version of unskew, and the revision that a run and a published result record as their maker.

`pyproject.toml` has the same version, which a test checks.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def revision(root: Path = Path(__file__).parents[2]) -> str:
    """The version, such as `0.1.0`; from a checkout of unskew with the commit, `0.1.0+a27cd8a`.

    `.changed` follows if files under `src` have uncommitted changes; two such states of one commit look the
    same.
    root: the folder above `src`. An installed unskew has no checkout of its own, even inside a user's
    repository.
    """
    if not (root / ".git").exists():
        return __version__
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if not commit:
        return __version__
    changed = ".changed" if _git(root, "status", "--porcelain", "--", "src") else ""
    return f"{__version__}+{commit}{changed}"


def _git(root: Path, *words: str) -> str:
    """What git prints; "" if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
