"""Attacks on finished runs, for the rows of a table that report the score of an attack.

A finding is stored in the folder of its run, in a file named after the attack's settings, so that rows which
report several scores of one attack share the file and no attack runs twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from unskew.attacks.perform import finding_on
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


def make(runs: Iterable[tuple[TableRow, Cell]], say: Say) -> None:
    """Run every attack that a row reports and that has no stored finding yet; store refusals as well.

    Raises UsageError (E126) if a row reports a score that none of its attacks has.
    """
    by_row: dict[str, tuple[TableRow, list[Finding]]] = {}
    for row, cell in runs:
        if leak := row.attack:
            finding = read(cell.path, leak) or _run_attack(cell, leak, say)
            by_row.setdefault(row.name, (row, []))[1].append(finding)
    for row, findings in by_row.values():
        _check_score(row, findings)


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
    scores = _scores(read(path, leak) or {})
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


def _scores(finding: Finding) -> list[dict[str, Any]]:
    return list(finding.get("scores", []))


def _check_score(row: TableRow, findings: Iterable[Finding]) -> None:
    leak = row.attack
    assert leak
    known = {f"{s['of']}; {s['metric']}" for finding in findings for s in _scores(finding)}
    score_name = f"{leak.of}; {leak.metric}"
    if known and score_name not in known:
        near = suggestion(score_name, sorted(known))
        raise UsageError(
            "E126",
            f"row {row.name}: '{leak.name}' has no score of '{score_name}'.{near} It has:"
            f" {', '.join(sorted(known))}.",
        )
