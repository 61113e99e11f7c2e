"""`unskew federation init | admit | show | audit | export-flower`: the coordinator's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

FOLDER = Path("federations")
Where = Annotated[Path, typer.Option("--folder", help="where federations are kept")]
app = typer.Typer(help="Make a federation, admit its sites, look at it.", no_args_is_help=True)


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(help="the federation's name")],
    host: Annotated[str, typer.Option(help="where sites reach the server: NAME or NAME:PORT (8000)")],
    sites: Annotated[str, typer.Option(help="the sites' names, separated by commas; their order is fixed by this")],
    folder: Where = FOLDER,
    no_tls: Annotated[
        bool, typer.Option("--no-tls", help="plain text on the network and no authentication of nodes by Flower")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Make keys, a certificate for the server and a ticket for every site."""
    from unskew.deploy.tickets import DAYS, Coordinator

    made = Coordinator.make(folder / name, name, host, [s.strip() for s in sites.split(",") if s.strip()], not no_tls)
    if as_json:
        print(json.dumps({"folder": str(made.folder), "sites": list(made.sites), "tls": made.tls}))
        return
    what = f"an authority, the server's certificate ({DAYS} days)" if made.tls else "NO certificate: TLS is off"
    print(f"made    {what}, {len(made.sites)} join tickets in {made.folder / 'tickets'}")
    print("        a ticket holds no secret; send each by any channel, and admit the public key that comes back")
    print(f"next    unskew serve {name}")
    print(f"        unskew federation admit {name} SITE.pub      after its fingerprint was read out to you")


@app.command("admit")
def admit(
    name: Annotated[str, typer.Argument(help="the federation")],
    key: Annotated[Path, typer.Argument(help="the public key that a site has sent: SITE.pub")],
    site: Annotated[str | None, typer.Option(help="the site it belongs to; default: the file's name")] = None,
    folder: Where = FOLDER,
) -> None:
    """Let a site take part. Compare the fingerprint with the one the site's engineer reads out."""
    from unskew.deploy.identity import Public
    from unskew.deploy.tickets import Coordinator
    from unskew.errors import UsageError

    home = Coordinator.open(folder / name)
    if not key.exists():
        raise UsageError("E111", f"there is no file {key}.")
    public = Public.parse(key.read_text())
    home.admit(site or key.stem, public)
    print(f"admitted  {site or key.stem}  fingerprint {public.fingerprint}")
    missing = [s for s in home.sites if s not in home.admitted()]
    print(f"waiting   {', '.join(missing)}" if missing else f"next      unskew run STUDY.yaml --on {name}")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="the federation")],
    folder: Where = FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Sites and their fingerprints."""
    from unskew.deploy.tickets import Coordinator

    home = Coordinator.open(folder / name)
    keys = home.admitted()
    found = {site: keys[site].fingerprint if site in keys else None for site in home.sites}
    if as_json:
        print(json.dumps({"host": home.host, "port": home.port, "tls": home.tls, "sites": found}))
        return
    print(f"{home.name}  {home.host}:{home.port}  TLS {'on' if home.tls else 'OFF'}")
    for site, fingerprint in found.items():
        print(f"  {site:<20} {fingerprint or 'not admitted yet'}")


@app.command("audit")
def audit(
    name: Annotated[str, typer.Argument(help="the federation")],
    run: Annotated[Path, typer.Argument(help="the folder of a run of it")],
    folder: Where = FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Check that a run's journal of requests, answers and refusals is as the coordinator wrote it."""
    from unskew.deploy import journal
    from unskew.deploy.tickets import Coordinator
    from unskew.errors import StateError, UsageError

    home, path = Coordinator.open(folder / name), run / journal.FILE
    if not path.exists():
        raise UsageError("E117", f"{run} has no {journal.FILE}; runs over a network have one.")
    found = journal.verify(path, home.key.public)
    changed = journal.changed_files(path, run) if not found.wrong else []
    if as_json:
        print(json.dumps({"lines": found.lines, "head": found.head, "wrong": found.wrong, "changed": changed}))
    if found.wrong:
        raise StateError("E207", f"{path}: line {found.lines + 1} {found.wrong}. The {found.lines} before it hold.")
    if changed:
        raise StateError("E207", f"{run}: not as they were when the run ended: {', '.join(changed)}.")
    if not as_json:
        print(f"ok    {found.lines} lines, signed by {home.key.public.fingerprint}")
        print(f"head  {found.head}      note it elsewhere: a missing end is seen against it only")


@app.command("export-flower")
def export_flower(
    name: Annotated[str, typer.Argument(help="the federation")],
    folder: Where = FOLDER,
) -> None:
    """Print the Flower commands that `serve`, `site run` and `run --on` stand for, for a security review."""
    from unskew.deploy.processes import exported
    from unskew.deploy.tickets import Coordinator

    print(exported(Coordinator.open(folder / name)))
