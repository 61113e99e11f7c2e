"""`unskew site run | check`: a site's side of a federation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.join import SITE

app = typer.Typer(help="Take part with data that stay here.", no_args_is_help=True)
Data = Annotated[str, typer.Option(help="a folder of class folders, an .npz, a .csv, or FILE.py:FUNCTION")]
Classes = Annotated[str, typer.Option(help="all class names, separated by commas; the same at every site")]
Folder = Annotated[Path, typer.Option(help="the site's folder")]


@app.command("run")
def run(
    data: Data,
    folder: Folder = SITE,
    classes: Classes = "",
    model: Annotated[
        str | None, typer.Option(help="FILE.py:FUNCTION to build the model, where a study has one from a file")
    ] = None,
    device: Annotated[str, typer.Option(help="where this site trains: cpu, cuda, cuda:1, auto")] = "cpu",
    port: Annotated[int, typer.Option(help="Flower's local port on this machine; 0: any that is free")] = 0,
) -> None:
    """Connect to the server and answer its requests until stopped."""
    from unskew.deploy.processes import SiteProcesses
    from unskew.deploy.tickets import Joined

    joined = Joined.open(folder)
    tls = "TLS on" if joined.ticket.authority else "TLS OFF"
    print(
        f"site {joined.ticket.site} of {joined.ticket.federation} → {joined.ticket.host}:{joined.ticket.port}  {tls}",
        flush=True,
    )
    print(f"logs    {folder / 'worker.log'} (what was asked), {folder / 'supernode.log'} (the connection)", flush=True)

    def say(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    SiteProcesses(joined, data, classes, model, device, port, say).run()


@app.command("check")
def check(
    data: Data,
    folder: Folder = SITE,
    classes: Classes = "",
    study: Annotated[
        Path | None, typer.Option(help="also list what would leave this site in this study: its YAML file")
    ] = None,
    sites: Annotated[int, typer.Option(help="how many sites the study has; some methods share more with more")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Look at the network, the certificate, the key and the data, without joining a run."""
    from unskew.deploy import doctor

    names = [c.strip() for c in classes.split(",") if c.strip()]
    found = doctor.check(folder, data, names)
    leaving = (
        doctor.leaving(study, data, names, sites) if study and all(f.ok for f in found if f.what == "data") else []
    )
    if as_json:
        told = [{"what": f.what, "ok": f.ok, "text": f.text} for f in found]
        print(json.dumps({"found": told, "leaves": leaving} if study else told))
    else:
        for f in found:
            print(f"{'ok  ' if f.ok else 'FAIL'}  {f.what:<12} {f.text}")
        for line in leaving:
            print(line)
    if not all(f.ok for f in found):
        raise SystemExit(3 if any(f.what == "data" and not f.ok for f in found) else 2)
    if not as_json:
        print(f"next  unskew site run --data {data} --folder {folder}")
