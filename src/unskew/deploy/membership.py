"""Sites that a federation gains and loses after it was created."""

from __future__ import annotations

import json

from unskew import disk
from unskew.deploy import admission, federation_journal
from unskew.deploy.tickets import Coordinator, Ticket
from unskew.errors import UsageError


def add(home: Coordinator, site: str) -> Ticket:
    """Give the federation another site, after all others in the order of clients, and write its ticket.

    Runs that have begun go on without it. Raises UsageError: E502 if there is one of this name, E114 for a bad name.
    """
    disk.check_name(site)
    if site in home.sites:
        raise UsageError("E502", f"{home.name} has a site '{site}' already.")
    wider = _with(home, (*home.sites, site))
    federation_journal.note(home, [("added", {"site": site})])
    return admission.invite(wider, site)


def remove(home: Coordinator, site: str) -> None:
    """Take a site and its key out of the federation. Its ticket and the bound on its samples go with it.

    Raises UsageError (E503) for a site that does not exist, or that is the last one.
    """
    admission.known_site(home, site)
    if len(home.sites) == 1:
        raise UsageError("E503", f"{site} is the last site of {home.name}.")
    if site in home.admitted():
        admission.revoke(home, site)
    _with(home, tuple(other for other in home.sites if other != site))
    federation_journal.note(home, [("removed", {"site": site})])
    for path in (home.ticket_file(site), home.folder / "admitted" / f"{site}.samples"):
        path.unlink(missing_ok=True)


def _with(home: Coordinator, sites: tuple[str, ...]) -> Coordinator:
    path = home.folder / "federation.json"
    facts = json.loads(path.read_text())
    disk.replace(path, json.dumps({**facts, "sites": list(sites)}, indent=1))
    return home.now()
