"""`unskew join`: create a site's key from its ticket, and show the key's fingerprint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unskew.federation.site.site_folder import SiteFolder

SITE = Path("site")
Fingerprint = Annotated[
    str,
    typer.Option(
        help="the coordinator's fingerprint as you were told it; a ticket of another one is refused"
    ),
]


def command(
    ticket: Annotated[Path, typer.Argument(help="the ticket the coordinator has sent")],
    folder: Annotated[
        Path, typer.Option(help="the site's folder, for its key, its state and its logs")
    ] = SITE,
    coordinator: Fingerprint = "",
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
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
        print(json.dumps({**facts, "fingerprint": joined.key.public.fingerprint, **given.fingerprints}))
        return
    show(joined, compared=bool(coordinator))
    print(f"next    unskew site check --data PATH --folder {shlex.quote(str(folder))}")


def show(joined: SiteFolder, compared: bool, say: Callable[[str], None] = print) -> None:
    """Print what the site has joined, and what the site sends back to the coordinator."""
    ticket = joined.ticket
    say(f"joined  {ticket.federation} as {ticket.site}; the key was made here and stays here (mode 0600)")
    for whose, fingerprint in ticket.fingerprints.items():
        say(f"check   {whose:<11} {fingerprint}")
    if not compared:
        say("        Have the coordinator read these out: a ticket that was altered on its way has others.")
    public = joined.folder / f"{ticket.site}.pub"
    say(f"send    {public} to the coordinator, and read out: {joined.key.public.fingerprint}")


def fingerprint_source(given: str, asks: bool) -> Callable[[], str]:
    """A function that returns the coordinator's fingerprint: the option's value, or what a person types.

    The fingerprint is not shown before, so that it cannot be confirmed unread. asks: whether a person may be
    asked. The function raises UsageError (E503) if there is neither an option nor a person to ask.
    """

    def ask() -> str:
        from unskew.errors import UsageError
        from unskew.federation.site.approvals import has_terminal

        if given:
            return given
        if not (asks and has_terminal()):
            text = (
                "a site joins with the coordinator's fingerprint, which `unskew federation show` prints there"
            )
            raise UsageError("E503", f"{text}: add --coordinator FINGERPRINT, or first: unskew join TICKET")
        print(
            "Call the coordinator on a number that you know. `unskew federation show` prints its fingerprint"
            " there."
        )
        return typer.prompt("The coordinator's fingerprint, or its first 8 pairs")

    return ask
