"""`unskew site run | check | clean`: a site's side of a federation."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import site_run
from unskew.cli.join import SITE
from unskew.cli.site_run import Classes, Data, Folder, Model, names, show_findings

app = typer.Typer(help="Take part in a federation with data that stay here.", no_args_is_help=True)
app.command("run")(site_run.command)


@app.command("approve")
def approve(
    number: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="the run's number, or a question's digest; without it, list what has asked"
        ),
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


@app.command("refuse")
def refuse(
    number: Annotated[str, typer.Argument(metavar="RUN", help="the run's number, or a question's digest")],
    folder: Folder = SITE,
) -> None:
    """Refuse a study, even while it is running: this site computes nothing more for it."""
    from unskew.federation.site import approvals
    from unskew.federation.site.site_folder import SiteFolder

    SiteFolder.open(folder)
    refused = approvals.decide(folder, number, "refused")
    print(f"refused  {refused.run}  {refused.method}: nothing more is computed for this study here")
    print(
        f"         to allow it after all: unskew site approve {refused.run} --folder"
        f" {shlex.quote(str(folder))}"
    )


@app.command("watch")
def watch(
    folder: Folder = SITE,
    port: Annotated[
        int, typer.Option(help="port of the page on this machine (default 0: any that is free)")
    ] = 0,
) -> None:
    """Show in a browser what waits, what runs and what has left this site. Only this machine can open the
    page; Ctrl-C ends it."""
    from unskew.federation.local_page import Page
    from unskew.federation.site.site_folder import SiteFolder
    from unskew.federation.site.site_page import html

    joined = SiteFolder.open(folder)
    page = Page(lambda: html(joined), port)
    print(f"open  {page.address}   (Ctrl-C ends the page; the site goes on)", flush=True)
    page.serve()


@app.command("policy")
def policy(
    folder: Folder = SITE,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="replace the value of one key: shares=weights,sums"),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="write the default policy where there is none")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check, show or change what studies may request from this site."""
    from dataclasses import asdict

    from unskew.errors import UsageError
    from unskew.federation.site.policy import POLICY_FILE, Policy
    from unskew.federation.site.site_folder import SiteFolder

    SiteFolder.open(folder)
    if default:
        if (folder / POLICY_FILE).exists():
            change = (
                "change its keys with: unskew site policy --set KEY=VALUE --folder"
                f" {shlex.quote(str(folder))}"
            )
            raise UsageError("E161", f"{folder / POLICY_FILE} exists and is not overwritten; {change}")
        Policy().write(folder)
    current = Policy.read(folder)
    if changes:
        before, current = current, current.changed(changes)
        current.write(folder)
        for line in before.changes(current) or ["changed  nothing: the policy says this already"]:
            print(line, file=sys.stderr if as_json else sys.stdout)
    print(json.dumps(asdict(current)) if as_json else current.text(), end="\n" if as_json else "")


@app.command("check")
def check(
    data: Data,
    folder: Folder = SITE,
    classes: Classes = "",
    study: Annotated[
        Path | None, typer.Option(help="a study's YAML file: also list what would leave this site in it")
    ] = None,
    sites: Annotated[
        int, typer.Option(help="how many sites the study has; some methods share more with more")
    ] = 2,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check the key, the network, the certificate, the clock, the data and the versions, without joining a
    run.

    A study can be looked at before there is a site, with --study and the data alone.
    """
    from unskew.federation.site.site_checks import check_site as checked
    from unskew.federation.site.site_checks import policy_finding

    joined = study is None or folder.exists()
    findings = checked(folder, data, names(classes), for_study=not joined)
    readable = all(f.ok for f in findings if f.what == "data")
    leaves: list[str] = []
    if study and readable:
        from unskew.federation.site.study_review import forecast

        asked, leaves = forecast(study, data, names(classes), sites, model)
        if joined:
            findings.append(policy_finding(folder, asked))
    if as_json:
        rows = [{"what": f.what, "ok": f.ok, "text": f.text} for f in findings]
        print(json.dumps({"found": rows, "leaves": leaves} if study else rows))
    else:
        show_findings(findings)
        for line in leaves:
            print(line)
    if not all(f.ok for f in findings):
        raise SystemExit(2 if readable else 3)
    if not as_json and not joined:
        print("next  unskew join TICKET, with the ticket that the coordinator sends")
    elif not as_json:
        named = [*(["--classes", classes] if classes else []), *(["--model", model] if model else [])]
        print(
            f"next  {shlex.join(['unskew', 'site', 'run', '--data', data, *named, '--folder', str(folder)])}"
        )


@app.command("clean")
def clean(
    runs: Annotated[
        list[str] | None, typer.Argument(help="runs by number (default: all that are old enough)")
    ] = None,
    folder: Folder = SITE,
    older: Annotated[
        float, typer.Option(help="remove what was last used so many days ago, or longer")
    ] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would be removed, and stop")] = False,
) -> None:
    """Remove the models and the private state of old runs. The record of what has left this site remains.

    A run that was used within the last hour may still be active and is never removed.
    """
    from unskew.federation.site.run_folder import removable_runs
    from unskew.federation.site.site_folder import SiteFolder

    SiteFolder.open(folder)
    kept, going_on = removable_runs(folder, runs or [], older)
    for run in kept:
        what = f"{run.path.name}  model and private state, {run.bytes / 1e6:.1f} MB, last used {run.age}"
        print(f"{'would remove' if dry_run else 'removed'}  {what}")
        if not dry_run:
            run.remove()
    for run in going_on:
        text = f"last used {run.age}, so it may be going on; wait until it was quiet for an hour"
        print(f"kept  {run.path.name}  {text}")
    if not (kept or going_on):
        print(
            f"nothing to remove: no run was last used {older:g} days ago or longer; --older DAYS reaches"
            " younger ones"
        )
