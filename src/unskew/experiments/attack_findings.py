"""Attacks on finished runs, for the rows of a table that report the score of an attack.

A finding is stored in the folder of its run, in a file named after the attack's settings, so that rows which
report several scores of one attack share the file and no attack runs twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew.attacks.attack import finding_on
from unskew.comparison.progress import Cell
from unskew.errors import StateError, UsageError, suggestion
from unskew.experiments.experiment import Leak, TableRow
from unskew.runs.reopen import UserCode
from unskew.system import disk

FOLDER = "leaks"
REFUSED = "refused"
"""The key in a finding's file under which the reason is stored why the attack does not fit the run."""
Finding = Mapping[str, Any]
Say = Callable[[str], None]


def make(runs: Sequence[tuple[TableRow, Cell]], say: Say) -> None:
    """Run every attack that a row reports and that has no stored finding yet; store refusals as well.

    Raises UsageError (E126) if a row reports a score that none of its attacks has.
    """
    known: dict[str, set[str]] = {}
    reported = {row.name: row for row, _ in runs}
    for row, cell in runs:
        if row.attack:
            finding = read(cell.path, row.attack) or _run_attack(cell, row.attack, say)
            names = {f"{s['of']}; {s['metric']}" for s in finding.get("scores", [])}
            known.setdefault(row.name, set()).update(names)
    for name, scores in known.items():
        leak = reported[name].attack
        assert leak
        wanted, listed = f"{leak.of}; {leak.metric}", sorted(scores)
        if scores and wanted not in scores:
            text = f"row {name}: '{leak.name}' has no score of '{wanted}'.{suggestion(wanted, listed)}"
            raise UsageError("E126", f"{text} It has: {', '.join(listed)}.")


def count_missing(runs: Iterable[tuple[TableRow, Cell]]) -> int:
    """The number of reported attacks without a stored finding; an attack shared by rows counts once."""
    files = {_file(cell.path, row.attack) for row, cell in runs if row.attack}
    return sum(not file.exists() for file in files)


def read(path: Path, leak: Leak) -> Finding | None:
    """The stored finding of the attack on the run in `path`, or None if the attack has not run.

    The finding is {REFUSED: reason} if the attack does not fit the run. Raises StateError (E111) for a
    damaged file.
    """
    file = _file(path, leak)
    try:
        return json.loads(file.read_bytes()) if file.exists() else None
    except ValueError as error:
        raise StateError(
            "E111", f"{file} is not JSON ({error}); remove it, and run the table again."
        ) from None


def score(path: Path, leak: Leak) -> dict[str, Any] | None:
    """The score that a row reports for this run, with the fields of `attacks.scores.Score`, or None."""
    scores = (read(path, leak) or {}).get("scores", [])
    return next((s for s in scores if (s["of"], s["metric"]) == (leak.of, leak.metric)), None)


def fits(path: Path, leak: Leak) -> bool:
    """Whether the attack fits the run in this folder."""
    return REFUSED not in (read(path, leak) or {})


def _run_attack(cell: Cell, leak: Leak, say: Say) -> Finding:
    try:
        finding: Finding = {
            **finding_on(cell.path, UserCode.of(cell.settings), leak.name, leak.settings, say),
            "pictures": {},
        }
    except UsageError as refusal:
        if refusal.code != "E151":
            raise
        finding = {REFUSED: refusal.text}
    file = _file(cell.path, leak)
    disk.folder_below(file.parent)
    disk.replace(file, json.dumps(finding, indent=1, allow_nan=False))
    return finding


def _file(path: Path, leak: Leak) -> Path:
    return path / FOLDER / f"{leak.fingerprint}.json"
