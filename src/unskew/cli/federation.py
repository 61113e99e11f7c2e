"""`unskew federation init | admit | ticket | revoke | add | remove | renew | show | audit | export-flower`:
manage the coordinator's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli import admit
from unskew.cli.admit import FOLDER, Where

if TYPE_CHECKING:
    from unskew.federation.tickets import Coordinator, Ticket

Name = Annotated[str, typer.Argument(help="the federation's name")]
app = typer.Typer(help="Create a federation, admit its sites, inspect it.", no_args_is_help=True)
app.command("admit")(admit.command)


@app.command("init")
def init(
    name: Name,
    host: Annotated[
        str,
        typer.Option(help="where sites reach the server: HOST, HOST:PORT or [IPv6]:PORT (default port 8000)"),
    ],
    sites: Annotated[
        str, typer.Option(help="the sites' names, separated by commas; their order is the clients' order")
    ],
    folder: Where = FOLDER,
    no_tls: Annotated[
        bool, typer.Option("--no-tls", help="disable TLS, and with it node authentication")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Create keys, the server's certificate and one ticket for each site."""
    from unskew.federation.certificates import DAYS
    from unskew.federation.tickets import TICKET_DAYS, Coordinator

    names = [s.strip() for s in sites.split(",") if s.strip()]
    home = Coordinator.make(folder / name, name, host, names, not no_tls)
    if as_json:
        facts = {"folder": str(home.folder), "sites": list(home.sites), "tls": home.tls}
        print(json.dumps({**facts, "fingerprints": home.fingerprints}))
        return
    tls = (
        f"an authority, the server's certificate ({DAYS} days)"
        if home.tls
        else "NO certificate: TLS is DISABLED"
    )
    print(f"created {tls}, {len(home.sites)} tickets in {home.folder / 'tickets'}")
    print(f"        each is good for one admission within {TICKET_DAYS} days: send it to its site only")
    _print_fingerprints(home.fingerprints)
    print("        read these out to every site, which compares them: a ticket that was altered has others")
    print(f"next    unskew serve {name}")
    print(
        f"        unskew federation admit {name} *.pub      once the sites have read their fingerprints out"
        " to you"
    )


def _print_ticket(home: Coordinator, ticket: Ticket) -> None:
    """Print the path of a ticket, its last day, and the fingerprint that both ends compare."""
    print(
        f"ticket  {home.ticket_file(ticket.site)}  for one admission, until {ticket.expires[:10]}; send it to"
        " its site only"
    )
    _print_fingerprints(home.fingerprints)
    print(
        "        read the coordinator's out to the site, which compares it: a ticket that was altered has"
        " another"
    )


def _print_fingerprints(fingerprints: Mapping[str, str]) -> None:
    for whose, fingerprint in fingerprints.items():
        print(f"check   {whose:<11} {fingerprint}")


@app.command("ticket")
def ticket(
    name: Name,
    site: Annotated[str, typer.Argument(help="the site that it is for")],
    days: Annotated[int, typer.Option(help="how long it may be used: 1 to 365 days")] = 14,
    folder: Where = FOLDER,
) -> None:
    """Write a new ticket for a site, if its ticket has expired, was used or was lost. The old ticket becomes
    invalid."""
    from unskew.federation import admission, journal
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    written = admission.invite(home, site, days)
    journal.record_events(home, [("ticket", {"site": site, "expires": written.expires})])
    _print_ticket(home, written)


@app.command("revoke")
def revoke(
    name: Name,
    site: Annotated[str, typer.Argument(help="the site whose key is not to be trusted any more")],
    folder: Where = FOLDER,
) -> None:
    """Revoke the admission of a site's key. A running server closes its connections within a second."""
    from unskew.federation import admission, journal
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    key = admission.revoke(home, site)
    journal.record_events(home, [("revoked", {"site": site, "key": key.fingerprint})])
    print(f"revoked  {site}  fingerprint {key.fingerprint}")
    print(f"next     unskew federation ticket {name} {site}      for a new key, made in a new folder")


@app.command("add")
def add(
    name: Name,
    site: Annotated[str, typer.Argument(help="the name of the new site")],
    folder: Where = FOLDER,
) -> None:
    """Add a site to a federation, and write its ticket. A running server accepts it once it is admitted."""
    from unskew.federation import admission
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    written = admission.add_site(home, site)
    print(f"added   {site} to {name}, which has {len(home.sites) + 1} sites now")
    _print_ticket(home, written)


@app.command("remove")
def remove(
    name: Name,
    site: Annotated[str, typer.Argument(help="the site to remove")],
    folder: Where = FOLDER,
) -> None:
    """Remove a site and its key from a federation. Runs that have begun continue without it."""
    from unskew.federation import admission
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    admission.remove_site(home, site)
    print(f"removed {site} from {name}, with its key; left: {', '.join(home.now().sites)}")


@app.command("renew")
def renew_certificate(
    name: Name,
    also: Annotated[
        str, typer.Option(help="further host names or addresses of the server, separated by commas")
    ] = "",
    folder: Where = FOLDER,
) -> None:
    """Renew the server's certificate; sites need not join again. A running server renews it by itself, 30
    days in advance."""
    from unskew.errors import UsageError
    from unskew.federation.admission import renew_certificate
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    if not home.tls:
        raise UsageError("E503", f"TLS is disabled in {name}, so that there is no certificate.")
    hosts = [host.strip() for host in also.split(",") if host.strip()]
    print(f"renewed  valid until {renew_certificate(home, hosts).not_valid_after_utc:%Y-%m-%d}")


@app.command("show")
def show(
    name: Name,
    folder: Where = FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print the server's address, the validity of its certificate, and the sites with their keys'
    fingerprints and bounds on samples."""
    from unskew.federation import admission, certificates
    from unskew.federation.addresses import host_port
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    keys, most = home.admitted(), admission.read_bounds(home)
    days = certificates.days_left(certificates.read(home.folder / "server.crt")) if home.tls else None
    fingerprints = {site: keys[site].fingerprint if site in keys else None for site in home.sites}
    if as_json:
        facts = {"host": home.host, "port": home.port, "tls": home.tls, "sites": fingerprints}
        print(json.dumps({**facts, "samples": most, "days": days, "fingerprints": home.fingerprints}))
        return
    tls = f"enabled, certificate valid for {days} days" if home.tls else "DISABLED"
    print(f"{home.name}  {host_port(home.host, home.port)}  TLS {tls}")
    _print_fingerprints(home.fingerprints)
    for site, fingerprint in fingerprints.items():
        bound = (
            f"  at most {most[site]:,} samples"
            if site in most
            else "  no bound on its samples" * bool(fingerprint)
        )
        print(f"  {site:<20} {fingerprint or 'not admitted'}{bound}")


@app.command("audit")
def audit(
    name: Name,
    run: Annotated[
        Path | None, typer.Argument(help="the folder of one of its runs (default: its own journal)")
    ] = None,
    folder: Where = FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check that the journal of a run, or the federation's journal of admissions and unknown callers, is
    unchanged since the coordinator wrote it."""
    from unskew.errors import StateError, UsageError
    from unskew.federation import journal
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    run = run or home.folder
    path = run / journal.JOURNAL_FILE
    if not path.exists():
        raise UsageError(
            "E117", f"{run} has no {journal.JOURNAL_FILE}; runs over a network and federations have one."
        )
    verdict = journal.verify(path, home.key.public)
    changed = journal.changed_files(path, run) if not verdict.wrong else []
    if as_json:
        print(
            json.dumps(
                {"lines": verdict.lines, "head": verdict.head, "wrong": verdict.wrong, "changed": changed}
            )
        )
    if verdict.wrong:
        text = (
            f"{path}: line {verdict.lines + 1} {verdict.wrong}. The {verdict.lines} lines before it are"
            " intact."
        )
        raise StateError("E201", text)
    if changed:
        raise StateError(
            "E201", f"{run}: these files have changed since the run ended: {', '.join(changed)}."
        )
    if not as_json:
        print(f"ok    {verdict.lines} lines, signed by {home.key.public.fingerprint}")
        print(
            f"head  {verdict.head}      keep a copy elsewhere: only against it can missing last lines be"
            " detected"
        )


@app.command("export-flower")
def export_flower(
    name: Name,
    folder: Where = FOLDER,
) -> None:
    """Print the Flower commands that `serve`, `site run` and `run --on` start, for a security review."""
    from unskew.federation.coordinator.server import program_lines
    from unskew.federation.tickets import Coordinator

    print(program_lines(Coordinator.open(folder / name)))
