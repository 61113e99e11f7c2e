"""Which versions of two ends work together, and which differences may change the bits of a run.

Ends with the same first two numbers of unskew (0.1.0 and 0.1.7) do, whatever their Python. The last number of unskew and
the version of torch can change the last bits of weights, so a difference there is told and not refused.
"""

from __future__ import annotations

from collections.abc import Mapping

DECIDING = ("unskew", "torch")
"""Packages whose version decides about bits."""
COORDINATOR = "the coordinator"


def refusal(here: str, ours: Mapping[str, str], there: str, theirs: Mapping[str, str]) -> str:
    """Why two ends cannot work together, and who must upgrade, as a sentence without its full stop; "" if they can.

    here, there: what the ends are called; ours, theirs: versions by package. Who says no version is taken as it comes.
    """
    a, b = ours.get("unskew", ""), theirs.get("unskew", "")
    if not (a and b) or _minor(a) == _minor(b):
        return ""
    older, newer = (here, b) if _minor(a) < _minor(b) else (there, a)
    other = there if older == here else here
    text = f"{here} runs unskew {a} and {there} {b}, which do not work together"
    return f"{text}: {older} must upgrade to unskew {'.'.join(newer.split('.')[:2])}, as at {other}"


def differing(here: str, ours: Mapping[str, str], there: str, theirs: Mapping[str, str]) -> str:
    """Which versions that decide about bits differ between two ends, as a sentence without its full stop; "" if none."""
    apart = [p for p in DECIDING if ours.get(p, "") != theirs.get(p, "") and p in ours and p in theirs]
    if not apart:
        return ""
    both = [" and ".join(f"{p} {of[p]}" for p in apart) for of in (ours, theirs)]
    return (
        f"{here} runs {both[0]}, {there} {both[1]}: the last bits of weights may differ from a run with equal versions"
    )


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers, to compare; what is no number counts as older than any."""
    return tuple(int(part) if part.isdecimal() else -1 for part in f"{version}.".split(".")[:2])
