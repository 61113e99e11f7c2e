"""The state of a site for its operator, as text: waiting studies, runs, what has left, scores and errors."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from unskew.errors import printable
from unskew.federation.site import approvals
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import (
    HEADER_SHARE,
    RunLedger,
    SiteLedger,
    latest_errors,
    named_scores,
    run_rows,
)
from unskew.report.analysis.numbers import size

ACTIVE_S = 600.0
"""A run without requests for this many seconds is not called running."""
MOST_RUNS, MOST_ERRORS = 20, 10


def state_text(joined: SiteFolder) -> str:
    """The state of a site, from the files of its folder. Raises UsageError (E521) for an unreadable policy or
    ledger."""
    folder = joined.folder
    policy, ledger = Policy.read(folder), SiteLedger.read(folder)
    requests = approvals.all_requests(folder)
    lines = [f"site    {joined.ticket.site} of {joined.ticket.federation}, at {joined.ticket.place}"]
    if policy.epsilon is None:
        lines.append(f"spent   epsilon {ledger.epsilon:g}, delta {ledger.delta:g}; the policy sets no budget")
    else:
        lines.append(
            f"spent   epsilon {ledger.epsilon:g} of {policy.epsilon:g}, delta {ledger.delta:g} of"
            f" {policy.delta:g}"
        )
    for request in requests:
        if request.state == "waiting":
            command = f"unskew site approve {request.run} --folder {shlex.quote(str(folder))}"
            lines += ["", "waits for a decision", request.text(), f"decide  {command}   or: ... refuse ..."]
    runs = sorted(ledger.runs.items(), key=lambda item: -item[1].last)
    lines += [""] if runs else ["", "no run has begun at this site"]
    lines += [_run_line(number, run) for number, run in runs[:MOST_RUNS]]
    if runs:
        lines += ["", f"what has left in run {runs[0][0]}", *_left(folder, *runs[0])]
    if errors := latest_errors(folder, MOST_ERRORS):
        lines += ["", "the last errors that the coordinator was told"]
        lines += [
            f"{_local_time(row['at'])}  {printable(row['run'])}  {row['said']['code']} "
            f"{printable(row['said']['text'])}"
            for row in errors
        ]
    return "\n".join(lines)


def _run_line(number: str, run: RunLedger) -> str:
    quiet = "running" if time.time() - run.last < ACTIVE_S else "quiet"
    state = "done" if run.t >= run.rounds else quiet
    left = f"{size(run.bytes)} have left, epsilon {run.epsilon:g}"
    return f"{number}  {run.method}  {state}, round {run.t} of {run.rounds}, {left}"


def _left(folder: Path, number: str, run: RunLedger) -> Iterator[str]:
    """Lines about what has left in a run, by name and kind of its Share, and the last scores."""
    rows = run_rows(folder, number)
    for share in dict.fromkeys(row["share"] for row in rows):
        several = [row for row in rows if row["share"] == share]
        kind, last = run.kinds.get(share, "statistics"), several[-1]
        if run.summed and share != HEADER_SHARE and not share.startswith("score/"):
            kind += ", only in a sum"
        total = size(sum(row["bytes"] for row in several))
        yield f"  {share} ({kind})  {len(several)} times, {total}, last in round {last['t']}"
    for scope, name, value in named_scores(rows, run):
        yield f"  last score, {scope}: {name} {value:.3f}"


def _local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
