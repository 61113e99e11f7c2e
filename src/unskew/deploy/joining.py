"""How a site takes its ticket: the fingerprint that the coordinator reads out is compared before anything is made or sent."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path

from unskew.deploy.ticket import Ticket
from unskew.deploy.tickets import Joined
from unskew.errors import UsageError

LEAST_DIGITS = 16
"""Hexadecimal digits of a fingerprint that must be given: nobody can make a key for so many of somebody else's."""
Heard = Callable[[], str]


def join(folder: Path, path: Path, heard: Heard | None) -> tuple[Joined, bool]:
    """The site in this folder, and whether it has only now joined with the ticket at `path`.

    A folder that has joined with this ticket before is opened, so that the same command can be given again; the ticket's
    file may then be gone. heard: the coordinator's fingerprint as a person has heard it, asked for before the key is made;
    None leaves the comparison to whoever reads what is printed.

    Raises UsageError: E111 without a ticket, E502 if the folder belongs to another ticket, E503 for a bad ticket, or for
    one of another coordinator than the person has spoken to.
    """
    if (folder / "ticket.json").exists():
        known = Joined.open(folder)
        if path.exists() and Ticket.read(path).signature != known.ticket.signature:
            whose = f"{folder} belongs to site {known.ticket.site} of {known.ticket.federation}, by another ticket"
            raise UsageError("E502", f"{whose}; join with this one in a new folder: --folder NAME")
        return known, False
    ticket = Ticket.read(path)
    ticket.check()
    if heard is not None:
        compare(ticket, heard())
    return Joined.make(folder, ticket), True


def compare(ticket: Ticket, fingerprint: str) -> None:
    """Raises UsageError (E503) unless the ticket is signed by the coordinator with this fingerprint.

    The signature covers the authority and the address too, so this one comparison is enough.
    """
    known, given = (_digits(text) for text in (ticket.fingerprints["coordinator"], fingerprint))
    if not set(given) <= set("0123456789ABCDEF") or not LEAST_DIGITS <= len(given) <= len(known):
        form = f"a fingerprint is {len(known) // 2} pairs of hexadecimal digits, of which the first 8 are enough"
        raise UsageError("E503", f"{form}; got '{fingerprint}'. `unskew federation show` prints it at the coordinator.")
    if not hmac.compare_digest(known[: len(given)], given):
        what = "this ticket is of another coordinator than the one with the fingerprint that you gave"
        raise UsageError("E503", f"{what}: it was replaced on its way, or you were read another fingerprint.")


def _digits(text: str) -> str:
    """Without what stands between the pairs."""
    return "".join(c for c in text.upper() if c not in ":- \t")
