"""The page for a site's operator: waiting studies, runs, what has left, scores and refusals."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import UnskewError
from unskew.federation.local_page import local_time, render
from unskew.federation.site import approvals, site_ledger
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import HEADER_SHARE, LEDGER_FILE, RunLedger, SiteLedger
from unskew.report.analysis.numbers import size

ACTIVE_S = 600.0
"""A run without requests for this many seconds is not called running."""
MOST_RUNS = 20


@dataclass(frozen=True)
class DisclosureRow:
    """What has left in one run under one name. kind: the kind that its Share declares."""

    share: str
    kind: str
    times: int
    bytes: str
    last: str


def html(joined: SiteFolder) -> str:
    """The page, from the current contents of the site's folder."""
    folder, now = joined.folder, time.time()
    problem, policy, spent = "", None, SiteLedger(folder, {})
    try:
        policy, spent = Policy.read(folder), SiteLedger.read(folder)
    except UnskewError as error:
        problem = str(error)
    runs = sorted(spent.runs.items(), key=lambda item: -item[1].last)
    return render(
        "site.html.j2",
        site=joined.ticket.site,
        federation=joined.ticket.federation,
        server=joined.ticket.place,
        folder=shlex.quote(str(folder)),
        problem=problem,
        policy=policy,
        epsilon=spent.epsilon,
        delta=spent.delta,
        requests=approvals.all_requests(folder),
        runs=[_run_row(number, run, now) for number, run in runs[:MOST_RUNS]],
        runs_in_all=len(runs),
        number=runs[0][0] if runs else "",
        left=disclosure_rows(folder, *runs[0]) if runs else [],
        scores=scores(folder, *runs[0]) if runs else [],
        troubles=[
            {**row, "at": local_time(row.get("at", 0.0))}
            for row in reversed(site_ledger.latest_troubles(folder))
        ],
    )


def disclosure_rows(folder: Path, number: str, run: RunLedger) -> list[DisclosureRow]:
    """What has left in a run, by name."""
    by_share: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(folder, number):
        by_share.setdefault(row["share"], []).append(row)
    return [
        DisclosureRow(
            share, _kind(share, run), len(rows), size(sum(r["bytes"] for r in rows)), _row_time(rows[-1])
        )
        for share, rows in by_share.items()
    ]


def _kind(share: str, run: RunLedger) -> str:
    """The kind of a share, with a remark if the coordinator sees only a sum."""
    kind = run.kinds.get(share, "statistics")
    return (
        f"{kind}, only in a sum"
        if run.summed and share != HEADER_SHARE and not share.startswith("score/")
        else kind
    )


def scores(folder: Path, number: str, run: RunLedger) -> list[tuple[str, str]]:
    """The last scores on the site's own test samples: scope of the weights, and the values in words."""
    values = {row["share"]: row["values"] for row in _rows(folder, number) if "values" in row}
    rows: dict[str, list[str]] = {}
    for share, one in values.items():
        scope, _, metric = share.partition("/")[2].partition(".")
        names = [metric] if metric else run.metrics
        rows.setdefault(scope, []).extend(f"{name} {value:.3f}" for name, value in zip(names, one))
    return [(scope, ", ".join(texts)) for scope, texts in rows.items()]


def _rows(folder: Path, number: str) -> list[dict[str, Any]]:
    """The complete lines of a run's ledger; the last one may be incomplete."""
    path = folder / "runs" / number / LEDGER_FILE
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _run_row(number: str, run: RunLedger, now: float) -> dict[str, Any]:
    ended = run.t >= run.rounds
    state = "done" if ended else "running" if now - run.last < ACTIVE_S else "quiet"
    words = {"number": number, "method": run.method, "rounds": run.rounds, "t": run.t, "state": state}
    return words | {"began": local_time(run.began), "bytes": size(run.bytes), "epsilon": run.epsilon}


def _row_time(row: dict[str, Any]) -> str:
    return f"round {row['t']}, {local_time(row['at'])}"
