"""The page for a site's operator: waiting studies, runs, what has left, scores and refusals."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from unskew.errors import UnskewError
from unskew.federation.local_page import local_time, render
from unskew.federation.site import approvals, site_ledger
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import HEADER_SHARE, RunLedger, SiteLedger, named_scores, run_rows
from unskew.report.analysis.numbers import size

ACTIVE_S = 600.0
"""A run without requests for this many seconds is not called running."""
MOST_RUNS = 20


def html(joined: SiteFolder) -> str:
    """The page of a site, made from the files of its folder."""
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


def disclosure_rows(folder: Path, number: str, run: RunLedger) -> list[dict[str, Any]]:
    """What has left in a run, by name. kind: the kind that its Share declares."""
    by_share: dict[str, list[dict[str, Any]]] = {}
    for row in run_rows(folder, number):
        by_share.setdefault(row["share"], []).append(row)
    rows: list[dict[str, Any]] = []
    for share, several in by_share.items():
        kind, last = run.kinds.get(share, "statistics"), several[-1]
        if run.summed and share != HEADER_SHARE and not share.startswith("score/"):
            kind = f"{kind}, only in a sum"
        row = {"share": share, "kind": kind, "times": len(several)}
        when = f"round {last['t']}, {local_time(last['at'])}"
        rows.append(row | {"bytes": size(sum(r["bytes"] for r in several)), "last": when})
    return rows


def scores(folder: Path, number: str, run: RunLedger) -> list[tuple[str, str]]:
    """The last scores on the site's own test samples: scope of the weights, and the values in words."""
    rows: dict[str, list[str]] = {}
    for scope, name, value in named_scores(run_rows(folder, number), run):
        rows.setdefault(scope, []).append(f"{name} {value:.3f}")
    return [(scope, ", ".join(texts)) for scope, texts in rows.items()]


def _run_row(number: str, run: RunLedger, now: float) -> dict[str, Any]:
    ended = run.t >= run.rounds
    state = "done" if ended else "running" if now - run.last < ACTIVE_S else "quiet"
    words = {"number": number, "method": run.method, "rounds": run.rounds, "t": run.t, "state": state}
    return words | {"began": local_time(run.began), "bytes": size(run.bytes), "epsilon": run.epsilon}
