"""The version of unskew, as in `pyproject.toml`, and the revision that runs and published results record."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def revision(root: Path = Path(__file__).parents[2]) -> str:
    """The version, such as `0.1.0`; in a checkout of unskew also the commit, `0.1.0+a27cd8a`.

    The suffix `.changed` means that files under `src` have uncommitted changes. root: the folder above `src`.
    An installed unskew has no checkout, even inside a user's repository.
    """
    if not (root / ".git").exists():
        return __version__
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if not commit:
        return __version__
    changed = ".changed" if _git(root, "status", "--porcelain", "--", "src") else ""
    return f"{__version__}+{commit}{changed}"


def _git(root: Path, *words: str) -> str:
    """The output of a git command; "" if it fails or git is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
