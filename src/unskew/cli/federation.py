"""`unskew federation init | admit | ticket | revoke | add | remove | show | audit`: manage the
coordinator's folder; `unskew serve`: run the server of a federation until it is stopped."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli.options import POSITIONAL, Json, Option
from unskew.errors import StateError, UsageError
from unskew.formats.specs import split_names

if TYPE_CHECKING:
    from unskew.federation.tickets import Coordinator, Ticket

FOLDER = Path("federations")
Name = Annotated[str, "the federation's name"]
Where = Annotated[Path, "where federations are kept"]


def _open(folder: Path, name: str) -> Coordinator:
    from unskew.federation.tickets import Coordinator

    return Coordinator.open(folder / name)


def init(
    name: Name,
    host: Annotated[
        str,
        Option("--host"),
        "where sites reach the server: HOST, HOST:PORT or [IPv6]:PORT (default port 8000)",
    ],
    sites: Annotated[
        str, Option("--sites"), "the sites' names, separated by commas; their order is the clients' order"
    ],
    folder: Where = FOLDER,
    as_json: Json = False,
) -> None:
    """Create keys, the server's certificate and one ticket for each site."""
    from unskew.federation.certificates import DAYS
    from unskew.federation.tickets import TICKET_DAYS, Coordinator

    home = Coordinator.make(folder / name, name, host, split_names(sites))
    if as_json:
        facts = {"folder": str(home.folder), "sites": list(home.sites)}
        print(json.dumps({**facts, "coordinator": home.key.public.fingerprint}))
        return
    what = f"an authority, the server's certificate ({DAYS} days)"
    print(f"created {what}, {len(home.sites)} tickets in {home.folder / 'tickets'}")
    print(f"        each is good for one admission within {TICKET_DAYS} days: send it to its site only")
    _print_fingerprint(home)
    print("        read it out to every site, which compares it: a ticket that was altered has another")
    print(f"next    unskew serve {name}")
    admit_them = f"unskew federation admit {name} *.pub"
    print(f"        {admit_them}      once the sites have read their fingerprints out to you")


def _print_ticket(home: Coordinator, ticket: Ticket) -> None:
    """Print the path of a ticket, its last day, and the fingerprint that both ends compare."""
    until = f"for one admission, until {ticket.expires[:10]}; send it to its site only"
    print(f"ticket  {home.ticket_file(ticket.site)}  {until}")
    _print_fingerprint(home)
    print("        read it out to the site, which compares it: an altered ticket has another")


def _print_fingerprint(home: Coordinator) -> None:
    print(f"check   coordinator {home.key.public.fingerprint}")


def admit(
    name: Name,
    keys: Annotated[tuple[Path, ...], "the public keys that sites have sent: a.pub b.pub"],
    compared: Annotated[bool, "do not ask: the fingerprints were compared (a script must say so)"] = False,
    folder: Where = FOLDER,
) -> None:
    """Admit sites to a federation: all of these keys, or none of them. First compare the fingerprints with
    those that the sites read out."""
    from unskew.federation import tickets

    home = _open(folder, name)
    texts = _key_texts(keys)
    publics = tickets.applicants(home, texts)
    for one, public in publics.items():
        print(f"key       {one:<20} fingerprint {public.fingerprint}")
    if not compared:
        _confirm(name, list(publics))
    for one, text in texts.items():
        tickets.admit(home, one, text)
        print(f"admitted  {one}")
    missing = [one for one in home.sites if one not in home.admitted()]
    print(f"missing   {', '.join(missing)}" if missing else f"next      unskew run STUDY.yaml --on {name}")


def _key_texts(keys: tuple[Path, ...]) -> dict[str, str]:
    """Maps each site to the text of its key file, which has the site's name.

    Raises UsageError: E111 for a missing file, E109 for a repeated name.
    """
    names = [key.stem for key in keys]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError("E109", f"two of these files are called {twice[0]}.pub; a site has one key.")
    for key in keys:
        if not key.is_file():
            raise UsageError("E111", f"there is no file {key}.")
    return {name: key.read_text(errors="replace") for name, key in zip(names, keys)}


def _confirm(name: str, sites: list[str]) -> None:
    """Ask at the terminal whether the fingerprints match. Raises UsageError (E503) if not, and without a
    terminal."""
    if not (sys.stdin and sys.stdin.isatty()):
        text = (
            "nobody is at a terminal to confirm these fingerprints; compare them with what the sites read out"
        )
        raise UsageError("E503", f"nobody was admitted to {name}: {text}, and add --compared.")
    each = sites[0] if len(sites) == 1 else "every site"
    if not typer.confirm(f"Has {each} read out this fingerprint, over the telephone or in person?"):
        raise UsageError("E503", f"nobody was admitted to {name}: the fingerprints were not confirmed.")


def ticket(
    name: Name,
    site: Annotated[str, "the site that it is for"],
    days: Annotated[int, "how long it may be used: 1 to 365 days"] = 14,
    folder: Where = FOLDER,
) -> None:
    """Write a new ticket for a site, if its ticket has expired, was used or was lost. The old ticket becomes
    invalid."""
    from unskew.federation import tickets

    home = _open(folder, name)
    written = tickets.invite(home, site, days)
    _print_ticket(home, written)


def revoke(
    name: Name,
    site: Annotated[str, "the site whose key is not to be trusted any more"],
    folder: Where = FOLDER,
) -> None:
    """Revoke the admission of a site's key. A running server closes its connections within a second."""
    from unskew.federation import tickets

    home = _open(folder, name)
    key = tickets.revoke(home, site)
    print(f"revoked  {site}  fingerprint {key.fingerprint}")
    print(f"next     unskew federation ticket {name} {site}      for a new key, made in a new folder")


def add(name: Name, site: Annotated[str, "the name of the new site"], folder: Where = FOLDER) -> None:
    """Add a site to a federation, and write its ticket. A running server accepts it once it is admitted."""
    from unskew.federation import tickets

    home = _open(folder, name)
    written = tickets.add_site(home, site)
    print(f"added   {site} to {name}, which has {len(home.sites) + 1} sites now")
    _print_ticket(home, written)


def remove(name: Name, site: Annotated[str, "the site to remove"], folder: Where = FOLDER) -> None:
    """Remove a site and its key from a federation. Runs that have begun continue without it."""
    from unskew.federation import tickets

    home = _open(folder, name)
    tickets.remove_site(home, site)
    print(f"removed {site} from {name}, with its key; left: {', '.join(home.now().sites)}")


def show(name: Name, folder: Where = FOLDER, as_json: Json = False) -> None:
    """Print the server's address, the validity of its certificate, and the sites with their keys'
    fingerprints."""
    from unskew.federation import certificates
    from unskew.federation.addresses import host_port

    home = _open(folder, name)
    keys = home.admitted()
    days = certificates.days_left(home.folder / "server.crt")
    fingerprints = {site: keys[site].fingerprint if site in keys else None for site in home.sites}
    if as_json:
        facts = {"host": home.host, "port": home.port, "sites": fingerprints}
        print(json.dumps({**facts, "days": days, "coordinator": home.key.public.fingerprint}))
        return
    print(f"{home.name}  {host_port(home.host, home.port)}  certificate valid for {days} days")
    _print_fingerprint(home)
    for site, fingerprint in fingerprints.items():
        print(f"  {site:<20} {fingerprint or 'not admitted'}")


def audit(
    name: Name,
    run: Annotated[
        Path | None, POSITIONAL, "the folder of one of its runs (default: its own journal)"
    ] = None,
    folder: Where = FOLDER,
    as_json: Json = False,
) -> None:
    """Check that the journal of a run, or the federation's journal of admissions and unknown callers, is
    unchanged since the coordinator wrote it."""
    from unskew.federation import journal

    home = _open(folder, name)
    run = run or home.folder
    path = run / journal.JOURNAL_FILE
    if not path.exists():
        text = f"{run} has no {journal.JOURNAL_FILE}; runs over a network and federations have one."
        raise UsageError("E117", text)
    verdict = journal.verify(path, home.key.public)
    changed = journal.changed_files(path, run) if not verdict.wrong else []
    if as_json:
        facts = {"lines": verdict.lines, "head": verdict.head, "wrong": verdict.wrong}
        print(json.dumps({**facts, "changed": changed}))
    if verdict.wrong:
        place = f"{path}: line {verdict.lines + 1} {verdict.wrong}"
        raise StateError("E201", f"{place}. The {verdict.lines} lines before it are intact.")
    if changed:
        files = ", ".join(changed)
        raise StateError("E201", f"{run}: these files have changed since the run ended: {files}.")
    if not as_json:
        print(f"ok    {verdict.lines} lines, signed by {home.key.public.fingerprint}")
        keep = "keep a copy elsewhere: only against it can missing last lines be detected"
        print(f"head  {verdict.head}      {keep}")


def serve(
    name: Name,
    folder: Where = FOLDER,
    bind: Annotated[
        str,
        "the address to listen at (default: the host if it is an address, else 0.0.0.0; ::, IPv4 and IPv6)",
    ] = "",
) -> None:
    """Run the server that sites connect to. `unskew run --on` starts runs separately."""
    from unskew.federation.addresses import host_port
    from unskew.federation.programs import echo, stop_at_end

    home = _open(folder, name)
    from unskew.federation.coordinator.server import Server  # needs Flower

    server = Server(home, bind, echo)
    place = host_port(server.bind, home.port)
    echo(
        f"{home.name}  {place}  TLS, for admitted keys only; requests and replies signed; telemetry disabled"
    )
    echo(f"admitted {len(home.admitted())} of {len(home.sites)} sites")
    with stop_at_end(server):
        while True:
            server.tend()
            time.sleep(0.3)
