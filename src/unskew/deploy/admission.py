"""From the public key that a site sends back to an admitted site, and out again.

The key carries the proof that it was created with the ticket that lies in the coordinator's folder, unaltered. Admission
uses the ticket up; a key that has left is let in again only with a new one.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from unskew.deploy.identity import Public
from unskew.deploy.tickets import PROOF, TICKET_DAYS, Coordinator, Ticket
from unskew.errors import UsageError


def applicants(home: Coordinator, texts: Mapping[str, str]) -> dict[str, Public]:
    """The keys in the texts of SITE.pub, by site, if every one of them may be admitted. Nothing is written.

    A key that is admitted already may come again, for example with new bounds. Raises UsageError: E502 if a site has
    another key, E503 for a site that does not exist, a key in use, or a key without the proof of a ticket that may be used.
    """
    keys = {site: Public.parse(text) for site, text in texts.items()}
    admitted = home.admitted()
    for site, key in keys.items():
        if site in home.sites and site not in admitted:
            _check(home, site, key, texts[site])
        home.check_key(site, key)
    if len({key.text for key in keys.values()}) < len(keys):
        raise UsageError("E503", "two of these files hold the same key; each site must create its own.")
    return keys


def admit(home: Coordinator, site: str, text: str) -> Public:
    """Admit the key in the text of SITE.pub. Raises UsageError as `applicants` does."""
    public = applicants(home, {site: text})[site]
    home.admit(site, public)
    home.ticket_file(site).unlink(missing_ok=True)
    return public


def invite(home: Coordinator, site: str, days: int = TICKET_DAYS) -> Ticket:
    """Write a new ticket for a site that is not admitted. An earlier one is good for nothing any more.

    Raises UsageError: E503 for a site that does not exist, E502 for one that is admitted, E109 for a time out of range.
    """
    known_site(home, site)
    if not 1 <= days <= 365:
        raise UsageError("E109", f"--days takes 1 to 365; got {days}.")
    if site in home.admitted():
        text = f"{site} is admitted; to give it a new key, first: unskew federation revoke {home.name} {site}"
        raise UsageError("E502", text)
    ticket = home.ticket(site, days)
    ticket.write(home.ticket_file(site))
    return ticket


def revoke(home: Coordinator, site: str) -> Public:
    """Take back the admission of a site. Raises UsageError: E503 for a site that does not exist, E502 for none admitted."""
    known_site(home, site)
    key = home.admitted().get(site)
    if key is None:
        raise UsageError("E502", f"{site} is not admitted, so that there is nothing to take back.")
    home.key_file(site).unlink()
    return key


def known_site(home: Coordinator, site: str) -> None:
    """Raises UsageError (E503) if the federation has no site of this name."""
    if site not in home.sites:
        raise UsageError("E503", f"{home.name} has no site '{site}'; it has {', '.join(home.sites)}.")


def _check(home: Coordinator, site: str, public: Public, text: str) -> None:
    """Raises UsageError (E503) unless the text proves that the key was created with the site's ticket."""
    path, new = home.ticket_file(site), f"send {site} a new one: unskew federation ticket {home.name} {site}"
    if not path.exists():
        raise UsageError("E503", f"the ticket of {site} has been used already; {new}")
    ticket = Ticket.read(path)
    if not ticket.secret or ticket.is_over():
        raise UsageError("E503", f"the ticket of {site} expired on {ticket.expires[:10] or 'an earlier day'}; {new}")
    proof = next((word.removeprefix(PROOF) for word in text.split() if word.startswith(PROOF)), "")
    if not proof:
        rule = f"it should end with {PROOF}... as `unskew join` wrote it"
        raise UsageError("E503", f"this public key carries no proof of a ticket; {rule}: send {site}.pub as it is.")
    if not hmac.compare_digest(proof.encode(), ticket.proof(public).encode()):
        cause = "the ticket was altered on its way, or an earlier one was used, or the key is of another site"
        raise UsageError("E503", f"this key was not created with the ticket of {site}: {cause}; {new}")
