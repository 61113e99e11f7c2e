"""Which versions of two ends work together, and which differences may change a run.

Ends with the same first two numbers of unskew (0.1.0 and 0.1.7) do, whatever their Python. The last number of unskew and
the version of torch can change the last bits of weights, so a difference there is told and not refused. So is one in a Part
that an installed package brings: each end runs its own code of it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from unskew import own
from unskew.core.method import Method
from unskew.core.part import Part

DECIDING = ("unskew", "torch")
"""Packages whose version decides about bits."""
NOT_DECIDING = "python"
COORDINATOR = "the coordinator"
MOST_PARTS = 7
"""Parts whose versions are told."""


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
    known = dict.fromkeys([*DECIDING, *ours])
    apart = [p for p in known if p != NOT_DECIDING and p in ours and p in theirs and ours[p] != theirs[p]]
    if not apart:
        return ""
    both = [" and ".join(f"{p} {of[p]}" for p in apart) for of in (ours, theirs)]
    what = "the last bits of weights" if {*apart} <= {*DECIDING} else "the run"
    return f"{here} runs {both[0]}, {there} {both[1]}: {what} may differ from a run with equal versions"


def of_parts(method: Method) -> dict[str, str]:
    """By name of each Part that an installed package brings: the package's version, and 8 digits of the SHA-256 of its file and
    of those modules of the package that it imports."""
    return dict([pair for part in method.parts if (pair := _of(type(part)))][:MOST_PARTS])


@cache
def _of(kind: type[Part]) -> tuple[str, str] | None:
    place = f"{kind.__module__}:{kind.__qualname__}"
    entry = next((e for e in entry_points(group="unskew.methods") if e.value == place), None)
    if entry is None:
        return None
    file = inspect.getsourcefile(kind)
    digest = _digest(Path(file), kind.__module__) if file and Path(file).is_file() else "no file"
    return entry.name, f"{entry.dist.version if entry.dist else 'without a version'} ({digest})"


def another(site: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Why a site cannot go on with a run, by what has changed there since it began, as a sentence without its full stop; "" if
    it can. Of unskew only the first two numbers count, which `refusal` looks at, and of Python none."""
    for what in ("torch", *(name for name in before if name not in ("torch", "unskew", NOT_DECIDING))):
        then, since = before.get(what), now.get(what)
        if then != since:
            return f"{site} runs another version of {what} than when the run began: it had {then}, now {since}"
    return ""


def _digest(file: Path, module: str) -> str:
    """Of a file that alone decides what its Part does, the file's own; else of all that do."""
    package = module.partition(".")[0]
    beside = [p.read_bytes() for p in sorted(own.imports(file, within=package))]
    sha = hashlib.sha256(file.read_bytes())
    for content in beside:
        sha.update(hashlib.sha256(content).digest())
    return sha.hexdigest()[:8]


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers, to compare; what is no number counts as older than any."""
    return tuple(int(part) if part.isdecimal() else -1 for part in f"{version}.".split(".")[:2])
