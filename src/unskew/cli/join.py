"""`unskew join`: a site takes its ticket, makes its key and shows the fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

SITE = Path("site")


def command(
    ticket: Annotated[Path, typer.Argument(help="the ticket the coordinator has sent")],
    folder: Annotated[Path, typer.Option(help="the site's folder, for its key, its state and its logs")] = SITE,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Make this site's key here. Nothing is sent; the public key goes back by any channel."""
    from unskew.deploy.tickets import Joined, Ticket

    joined = Joined.make(folder, Ticket.read(ticket))
    public, name = joined.key.public, joined.ticket.site
    if as_json:
        facts = {"site": name, "public": str(folder / f"{name}.pub"), "fingerprint": public.fingerprint}
        print(json.dumps({**facts, **joined.ticket.fingerprints}))
        return
    print(f"joined  {joined.ticket.federation} as {name}; the key was made here and stays here (mode 0600)")
    for whose, fingerprint in joined.ticket.fingerprints.items():
        print(f"check   {whose:<11} {fingerprint}")
    print("        Have the coordinator read these out: a ticket that was altered on its way has others.")
    print(f"send    {folder / f'{name}.pub'} to the coordinator, and read out: {public.fingerprint}")
    print(f"next    unskew site check --data PATH --folder {folder}")
