"""Runs that have asked a site and have not begun there, of which it keeps the last twenty.

A coordinator may ask under as many numbers as it likes before anybody has approved anything. A number that had to make
room stays known, because a run's number stands for the study that its operator has read about.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from unskew import disk
from unskew.deploy import approvals
from unskew.deploy.refusing import refusal

MOST_ASKING = 20
FILE = "forgotten"
"""The numbers of runs that had to make room, one a line."""
MOST_KNOWN = 10_000
"""How many of them are kept."""
_OF_ASKING = {"serial", "study"}
"""What the folder of a run holds that has only asked."""


def make_room(folder: Path, run: str) -> list[str]:
    """Before a run that is new gets a folder: forget those that asked longest ago. Returns their numbers.

    Raises UsageError (E520) for a number that was forgotten.
    """
    if (folder / "runs" / run).exists():
        return []
    book = folder / FILE
    known = book.read_text().split() if book.exists() else []
    if run in known:
        text = f"run {run} had asked, and had to make room for {MOST_ASKING} later ones that asked; start a new run"
        raise refusal(text)
    asking = sorted((p for p in (folder / "runs").glob("*") if _has_only_asked(p)), key=_asked_last)
    over = [path.name for path in asking[: max(0, len(asking) + 1 - MOST_ASKING)]]
    if over:
        disk.replace(book, "".join(f"{number}\n" for number in (*known, *over)[-MOST_KNOWN:]))
    for number in over:
        approvals.forget(folder, number)
        shutil.rmtree(folder / "runs" / number)
    return over


def _has_only_asked(path: Path) -> bool:
    return path.is_dir() and {p.name.partition(".")[0] for p in path.iterdir()} <= _OF_ASKING


def _asked_last(path: Path) -> float:
    return max((p.stat().st_mtime for p in path.iterdir()), default=path.stat().st_mtime)
