"""`unskew site run | approve | refuse | watch | policy | check` and `unskew join`: a site's side of a
federation."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unskew.cli.options import POSITIONAL, Json, Option
from unskew.errors import UsageError
from unskew.formats.specs import split_names

if TYPE_CHECKING:
    from unskew.federation.site.site_folder import Finding, SiteFolder
    from unskew.federation.site.site_ledger import RunLedger

SITE = Path("site")
Data = Annotated[
    str,
    Option("--data"),
    "a folder, an .npz, .csv or .parquet file, or FILE.py:FUNCTION; how it is read may follow in brackets",
]
Classes = Annotated[str, "all class names, separated by commas; the same at every site"]
Folder = Annotated[Path, "the site's folder"]
Model = Annotated[str | None, "FILE.py:FUNCTION that builds the model, for studies with a model from a file"]
Number = Annotated[str, "the run's number, or a question's digest"]
Fingerprint = Annotated[
    str, "the coordinator's fingerprint as you were told it; a ticket of another one is refused"
]
INDENT = "\n" + " " * 19
ACTIVE_S = 600.0
"""A run without requests for this many seconds is not called running."""
MOST_RUNS, MOST_ERRORS, MOST_WAITING = 20, 10, 20
"""What `site watch` prints at most, the newest first."""
LATER_CHECKS = ("network", "admission")
"""Checks that a new site need not pass yet: the server may not run, and the site's key is not admitted."""


def join(
    ticket: Annotated[Path, "the ticket the coordinator has sent"],
    folder: Annotated[Path, "the site's folder, for its key, its state and its logs"] = SITE,
    coordinator: Fingerprint = "",
    as_json: Json = False,
) -> None:
    """Create this site's key on this machine. Nothing is sent; return the public key by any channel."""
    from unskew.federation.site.site_folder import SiteFolder, check_fingerprint
    from unskew.federation.tickets import Ticket

    given = Ticket.read(ticket)
    if coordinator:
        check_fingerprint(given, coordinator)
    joined = SiteFolder.make(folder, given)
    if as_json:
        facts = {"site": given.site, "public": str(folder / f"{given.site}.pub")}
        own = joined.key.public.fingerprint
        print(json.dumps({**facts, "fingerprint": own, "coordinator": given.fingerprint}))
        return
    _show_joined(joined, compared=bool(coordinator))
    print(f"next    unskew site check --data PATH --folder {shlex.quote(str(folder))}")


def _show_joined(joined: SiteFolder, compared: bool) -> None:
    """Print what the site has joined, and what the site sends back to the coordinator."""
    ticket = joined.ticket
    print(f"joined  {ticket.federation} as {ticket.site}; the key was made here and stays here (mode 0600)")
    print(f"check   coordinator {ticket.fingerprint}")
    if not compared:
        print("        Have the coordinator read this out: a ticket that was altered on its way has another.")
    public = joined.folder / f"{ticket.site}.pub"
    print(f"send    {public} to the coordinator, and read out: {joined.key.public.fingerprint}")


def run(
    data: Data,
    folder: Folder = SITE,
    ticket: Annotated[
        Path | None, "join with this ticket first, unless the site has; may be given again"
    ] = None,
    coordinator: Fingerprint = "",
    classes: Classes = "",
    model: Model = None,
    device: Annotated[str, "where this site trains: cpu, cuda, cuda:1, auto"] = "cpu",
    approve: Annotated[
        Literal["ask", "all"],
        "ask: a new study waits for `unskew site approve`; all: what the policy allows may begin",
    ] = "ask",
) -> None:
    """Connect to the server and answer its requests until stopped."""
    from unskew.federation.programs import echo_timed
    from unskew.federation.site.connection import SiteProcesses
    from unskew.federation.site.site_folder import SiteFolder, check_fingerprint
    from unskew.records.run_lock import RunLock

    joined = _join(folder, ticket, coordinator, data, classes) if ticket else SiteFolder.open(folder)
    if coordinator:
        check_fingerprint(joined.ticket, coordinator)  # also for a site that joined without this option
    site = joined.ticket
    how = "new ones wait for `unskew site approve`"
    if approve == "all":
        how = "ALL that the policy allows begin without asking"
    print(f"site {site.site} of {site.federation} → {site.place}")
    print(f"logs    {folder / 'worker.log'}")
    print(f"studies {how}; policy: {folder / 'policy.yaml'}", flush=True)
    with RunLock(folder):
        SiteProcesses(joined, data, classes, model, device, echo_timed, approve).run()


def _join(folder: Path, ticket: Path, coordinator: str, data: str, classes: str) -> SiteFolder:
    """The site in this folder; it joins first if it has not yet, so that the command can be repeated, then
    also without the ticket's file.

    Raises UsageError: E161 if the folder belongs to another ticket, E503 for a bad ticket or one of another
    coordinator; and SystemExit if a check of a new site fails.
    """
    from unskew.federation.site.site_folder import SiteFolder, check_fingerprint, check_site
    from unskew.federation.tickets import Ticket

    if (folder / "ticket.json").exists():
        joined = SiteFolder.open(folder)
        if ticket.exists() and Ticket.read(ticket).signature != joined.ticket.signature:
            owner = f"site {joined.ticket.site} of {joined.ticket.federation}, by another ticket"
            text = f"{folder} belongs to {owner}; join with this one in a new folder: --folder NAME"
            raise UsageError("E161", text)
        _show_joined(joined, compared=False)
        return joined
    given = Ticket.read(ticket)
    given.check()
    check_fingerprint(given, coordinator or _ask_fingerprint())
    joined = SiteFolder.make(folder, given)
    _show_joined(joined, compared=True)
    findings = check_site(folder, data, split_names(classes))
    _show_findings(findings, LATER_CHECKS)
    if wrong := [f.what for f in findings if not f.ok and f.what not in LATER_CHECKS]:
        print("The site has joined and has connected to nobody. Mend this, then repeat the command.")
        raise SystemExit(3 if wrong == ["data"] else 2)
    return joined


def _ask_fingerprint() -> str:
    """The coordinator's fingerprint as a person types it, who is not shown it before.

    Raises UsageError (E503) without a terminal.
    """
    where = "`unskew federation show` prints it there"
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        text = f"a site joins with the coordinator's fingerprint, and {where}"
        raise UsageError("E503", f"{text}: add --coordinator FINGERPRINT, or first: unskew join TICKET")
    print(f"Call the coordinator on a number that you know, and ask for the fingerprint: {where}.")
    return typer.prompt("The coordinator's fingerprint, or its first 8 pairs")


def _show_findings(findings: Sequence[Finding], not_yet: Container[str] = ()) -> None:
    """Print one line per check. not_yet: checks that need not pass yet."""
    for f in findings:
        failed = "wait" if f.what in not_yet else "FAIL"
        print(f"{'ok  ' if f.ok else failed}  {f.what:<12} {f.text.replace(chr(10), INDENT)}")


def approve(
    number: Annotated[
        str,
        POSITIONAL,
        "the run's number, or a question's digest; without it, list what has asked",
    ] = "",
    folder: Folder = SITE,
) -> None:
    """Approve a study's requests in this run and in later runs; without a run, list every study that has
    asked."""
    from unskew.federation.site import approvals
    from unskew.federation.site.site_folder import SiteFolder

    SiteFolder.open(folder)
    if number:
        approved = approvals.decide(folder, number, "approved")
        what = ", and later runs of this study"
        if approved.releases == "error":
            what = ": its coordinator may read this error, and nothing else leaves"
        elif "  epsilon " in approved.leaves:
            what += "\n          each later run spends its epsilon once more"
        print(f"approved  {approved.run}{what}\n{approved.text()}")
        return
    requests = approvals.all_requests(folder)
    print("\n\n".join(r.text() for r in requests) if requests else "No study has asked for this site's data.")
    if waiting := [r.run for r in requests if r.state == "waiting"]:
        where = f"{waiting[0]} --folder {shlex.quote(str(folder))}"
        print(f"\ndecide: unskew site approve {where}   or: unskew site refuse {where}")


def refuse(number: Number, folder: Folder = SITE) -> None:
    """Refuse a study, even while it is running: this site computes nothing more for it."""
    from unskew.federation.site import approvals
    from unskew.federation.site.site_folder import SiteFolder

    SiteFolder.open(folder)
    refused = approvals.decide(folder, number, "refused")
    print(f"refused  {refused.run}  {refused.method}: nothing more is computed for this study here")
    allow = f"unskew site approve {refused.run} --folder {shlex.quote(str(folder))}"
    print(f"         to allow it after all: {allow}")


def watch(folder: Folder = SITE) -> None:
    """Print the state of a site: waiting and running studies, data that left, the last scores, and the last
    errors that were sent to the coordinator."""
    from unskew.federation.site.site_folder import SiteFolder

    print(state_text(SiteFolder.open(folder)))


def state_text(joined: SiteFolder) -> str:
    """The state of a site, from the files of its folder. Raises UsageError (E521) for an unreadable policy or
    ledger."""
    from unskew.errors import printable
    from unskew.federation.site import approvals
    from unskew.federation.site.policy import Policy
    from unskew.federation.site.site_ledger import SiteLedger, latest_errors

    folder = joined.folder
    policy, ledger = Policy.read(folder), SiteLedger.read(folder)
    waiting = [request for request in approvals.all_requests(folder) if request.state == "waiting"]
    lines = [f"site    {joined.ticket.site} of {joined.ticket.federation}, at {joined.ticket.place}"]
    if policy.epsilon is None:
        lines.append(f"spent   epsilon {ledger.epsilon:g}, delta {ledger.delta:g}; the policy sets no budget")
    else:
        lines.append(
            f"spent   epsilon {ledger.epsilon:g} of {policy.epsilon:g}, delta {ledger.delta:g} of"
            f" {policy.delta:g}"
        )
    for request in waiting[:MOST_WAITING]:
        command = f"unskew site approve {request.run} --folder {shlex.quote(str(folder))}"
        lines += ["", "waits for a decision", request.text(), f"decide  {command}   or: ... refuse ..."]
    if len(waiting) > MOST_WAITING:
        lines += ["", f"{len(waiting) - MOST_WAITING} older questions wait, too: unskew site approve"]
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
    from unskew.report.analysis.number_formats import size

    quiet = "running" if time.time() - run.last < ACTIVE_S else "quiet"
    state = "done" if run.t >= run.rounds else quiet
    left = f"{size(run.bytes)} have left, epsilon {run.epsilon:g}"
    return f"{number}  {run.method}  {state}, round {run.t} of {run.rounds}, {left}"


def _left(folder: Path, number: str, run: RunLedger) -> Iterator[str]:
    """Lines about what has left in a run, by name and kind of its Share, and the last scores."""
    from unskew.federation.site.site_ledger import HEADER_SHARE, named_scores, run_rows
    from unskew.report.analysis.number_formats import size

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


def policy(
    folder: Folder = SITE,
    default: Annotated[bool, "write the default policy where there is none"] = False,
    as_json: Json = False,
) -> None:
    """Check and show what studies may request from this site; its file `policy.yaml` is edited by hand."""
    from dataclasses import asdict

    from unskew.federation.site.policy import POLICY_FILE, Policy
    from unskew.federation.site.site_folder import SiteFolder

    SiteFolder.open(folder)
    if default:
        if (folder / POLICY_FILE).exists():
            raise UsageError("E161", f"{folder / POLICY_FILE} exists and is not overwritten; edit it.")
        Policy().write(folder)
    current = Policy.read(folder)
    print(json.dumps(asdict(current)) if as_json else current.text(), end="\n" if as_json else "")


def check(
    data: Data,
    folder: Folder = SITE,
    classes: Classes = "",
    study: Annotated[Path | None, "a study's YAML file: also list what would leave this site in it"] = None,
    sites: Annotated[int, "how many sites the study has; some methods share more with more"] = 2,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Check the key, the network, the certificate, the clock, the data and the versions, without joining a
    run.

    A study can be looked at before there is a site, with --study and the data alone.
    """
    from unskew.federation.site.site_folder import check_site, policy_finding

    joined = study is None or folder.exists()
    findings = check_site(folder, data, split_names(classes), for_study=not joined)
    readable = all(f.ok for f in findings if f.what == "data")
    leaves: list[str] = []
    if study and readable:
        from unskew.federation.site.study_review import forecast

        asked, leaves = forecast(study, data, split_names(classes), sites, model)
        if joined:
            findings.append(policy_finding(folder, asked))
    if as_json:
        rows = [{"what": f.what, "ok": f.ok, "text": f.text} for f in findings]
        print(json.dumps({"found": rows, "leaves": leaves} if study else rows))
    else:
        _show_findings(findings)
        for line in leaves:
            print(line)
    if not all(f.ok for f in findings):
        raise SystemExit(2)
    if not as_json and not joined:
        print("next  unskew join TICKET, with the ticket that the coordinator sends")
    elif not as_json:
        named = [*(["--classes", classes] if classes else []), *(["--model", model] if model else [])]
        words = ["unskew", "site", "run", "--data", data, *named, "--folder", str(folder)]
        print(f"next  {shlex.join(words)}")
