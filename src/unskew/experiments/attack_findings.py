"""Rows of a table that report what an attack finds: the attacks on finished runs, and where their findings
are kept.

A finding lies in the folder of its run, in a file named by the attack's settings, so that rows which read
several scores of one attack share it and none is made twice.
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
"""The key of a finding's file that says why the attack does not fit the run."""
Finding = Mapping[str, Any]
Say = Callable[[str], None]


def make(runs: Iterable[tuple[TableRow, Cell]], say: Say) -> None:
    """Every attack that the rows of these runs report and that is not kept yet; refusals of an attack are
    kept, too.

    Raises UsageError (E126) where a row reports a score that none of its runs' attacks has.
    """
    by_row: dict[str, tuple[TableRow, list[Finding]]] = {}
    for row, cell in runs:
        if leak := row.attack:
            finding = read(cell.path, leak) or _made(cell, leak, say)
            by_row.setdefault(row.name, (row, []))[1].append(finding)
    for row, findings in by_row.values():
        _check_score(row, findings)


def count_missing(runs: Iterable[tuple[TableRow, Cell]]) -> int:
    """How many attacks the rows of these runs report that are not kept yet; rows may share one."""
    files = {_file(cell.path, row.attack) for row, cell in runs if row.attack}
    return sum(not file.exists() for file in files)


def read(path: Path, leak: Leak) -> Finding | None:
    """What the attack found on the run of this folder, {REFUSED: why} where it does not fit; None if it was
    not made.

    Raises StateError (E111) for a damaged file.
    """
    file = _file(path, leak)
    try:
        return json.loads(file.read_bytes()) if file.exists() else None
    except ValueError as error:
        raise StateError(
            "E111", f"{file} is not JSON ({error}); remove it, and run the table again."
        ) from None


def score(path: Path, leak: Leak) -> dict[str, Any] | None:
    """The score that a row reports of this run, with the fields of `attacks.scores.Score`; None where it has
    none."""
    scores = _scores(read(path, leak) or {})
    return next((s for s in scores if (s["of"], s["metric"]) == (leak.of, leak.metric)), None)


def fits(path: Path, leak: Leak) -> bool:
    """Whether the attack could be made on the run of this folder."""
    return REFUSED not in (read(path, leak) or {})


def _made(cell: Cell, leak: Leak, say: Say) -> Finding:
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
    file.parent.mkdir(exist_ok=True)
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
    asked = f"{leak.of}; {leak.metric}"
    if known and asked not in known:
        near = suggestion(asked, sorted(known))
        raise UsageError(
            "E126",
            f"row {row.name}: '{leak.name}' has no score of '{asked}'.{near} It has:"
            f" {', '.join(sorted(known))}.",
        )
