"""`unskew site run | check`: a site's side of a federation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.join import SITE

app = typer.Typer(help="Take part in a federation with data that stay here.", no_args_is_help=True)
Data = Annotated[str, typer.Option(help="a folder with one folder a class, an .npz, a .csv, or FILE.py:FUNCTION")]
Classes = Annotated[str, typer.Option(help="all class names, separated by commas; the same at every site")]
Folder = Annotated[Path, typer.Option(help="the site's folder")]


@app.command("run")
def run(
    data: Data,
    folder: Folder = SITE,
    classes: Classes = "",
    model: Annotated[
        str | None, typer.Option(help="FILE.py:FUNCTION that builds the model, for studies with a model from a file")
    ] = None,
    device: Annotated[str, typer.Option(help="where this site trains: cpu, cuda, cuda:1, auto")] = "cpu",
) -> None:
    """Connect to the server and answer its requests until stopped."""
    from unskew.deploy.connecting import SiteProcesses
    from unskew.deploy.tickets import Joined

    joined = Joined.open(folder)
    ticket, tls = joined.ticket, "TLS enabled" if joined.ticket.authority else "TLS DISABLED"
    print(f"site {ticket.site} of {ticket.federation} → {ticket.host}:{ticket.port}  {tls}", flush=True)
    print(f"logs    {folder / 'worker.log'}", flush=True)

    def say(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    SiteProcesses(joined, data, classes, model, device, say).run()


@app.command("check")
def check(
    data: Data,
    folder: Folder = SITE,
    classes: Classes = "",
    study: Annotated[
        Path | None, typer.Option(help="a study's YAML file: also list what would leave this site in it")
    ] = None,
    sites: Annotated[int, typer.Option(help="how many sites the study has; some methods share more with more")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check the key, the network, the certificate, the clock, the data and the versions, without joining a run."""
    from unskew.deploy.doctor import check as checked

    names = [c.strip() for c in classes.split(",") if c.strip()]
    findings = checked(folder, data, names)
    readable = all(f.ok for f in findings if f.what == "data")
    leaves: list[str] = []
    if study and readable:
        from unskew.deploy.leaving import forecast

        leaves = forecast(study, data, names, sites)
    if as_json:
        rows = [{"what": f.what, "ok": f.ok, "text": f.text} for f in findings]
        print(json.dumps({"found": rows, "leaves": leaves} if study else rows))
    else:
        for f in findings:
            print(f"{'ok  ' if f.ok else 'FAIL'}  {f.what:<12} {f.text}")
        for line in leaves:
            print(line)
    if not all(f.ok for f in findings):
        raise SystemExit(2 if readable else 3)
    if not as_json:
        print(f"next  unskew site run --data {data} --folder {folder}")
