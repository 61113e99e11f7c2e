"""Admission to a federation: admitted keys, bounds on samples, sites that come and go, and the server's
certificate.

Admission: the public key that a site sends back carries a proof that it was created with the unaltered
ticket in the coordinator's folder. Admission uses the ticket up; a revoked key is admitted again only with
a new one.

Bounds: the most samples that each site may claim, as agreed with it (`unskew federation admit --samples
N`). A site's weight in the merge, and in the mean of scores, follows from numbers that only the site knows;
the bound keeps a false number from dominating the run.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from unskew.errors import UsageError, suggestion
from unskew.federation import journal
from unskew.federation.protocol.identity import PublicKey
from unskew.federation.tickets import PROOF, TICKET_DAYS, Coordinator, Ticket
from unskew.system import disk


def applicants(home: Coordinator, texts: Mapping[str, str]) -> dict[str, PublicKey]:
    """The keys in the texts of SITE.pub, by site, if all of them may be admitted. Nothing is written.

    An admitted key may come again, for example with new bounds. Raises UsageError: E161 if a site has
    another key, E503 for an unknown site, a key in use, or a key without the proof of a valid ticket.
    """
    keys = {site: PublicKey.parse(text) for site, text in texts.items()}
    admitted = home.admitted()
    for site, key in keys.items():
        if site in home.sites and site not in admitted:
            _check_proof(home, site, key, texts[site])
        home.check_key(site, key)
    if len({key.text for key in keys.values()}) < len(keys):
        raise UsageError("E503", "two of these files hold the same key; each site must create its own.")
    return keys


def admit(home: Coordinator, site: str, text: str) -> PublicKey:
    """Admit the key in the text of SITE.pub. Raises UsageError as `applicants` does."""
    public = applicants(home, {site: text})[site]
    home.admit(site, public)
    home.ticket_file(site).unlink(missing_ok=True)
    return public


def invite(home: Coordinator, site: str, days: int = TICKET_DAYS) -> Ticket:
    """Write a new ticket for a site that is not admitted. An earlier ticket becomes invalid.

    Raises UsageError: E503 for an unknown site, E161 for an admitted one, E109 for an invalid number of
    days.
    """
    home.require_site(site)
    if not 1 <= days <= 365:
        raise UsageError("E109", f"--days takes 1 to 365; got {days}.")
    if site in home.admitted():
        text = f"{site} is admitted; to give it a new key, first: unskew federation revoke {home.name} {site}"
        raise UsageError("E161", text)
    ticket = home.ticket(site, days)
    ticket.write(home.ticket_file(site))
    return ticket


def revoke(home: Coordinator, site: str) -> PublicKey:
    """Revoke a site's key. Raises UsageError: E503 for an unknown site, E161 for one not admitted."""
    home.require_site(site)
    key = home.admitted().get(site)
    if key is None:
        raise UsageError("E161", f"{site} is not admitted, so that there is nothing to take back.")
    home.key_file(site).unlink()
    return key


def _check_proof(home: Coordinator, site: str, public: PublicKey, text: str) -> None:
    """Raises UsageError (E503) unless the text proves that the key was created with the site's ticket."""
    path, new = home.ticket_file(site), f"send {site} a new one: unskew federation ticket {home.name} {site}"
    if not path.exists():
        raise UsageError("E503", f"the ticket of {site} has been used already; {new}")
    ticket = Ticket.read(path)
    if not ticket.secret or ticket.is_over():
        day = ticket.expires[:10] or "an earlier day"
        raise UsageError("E503", f"the ticket of {site} expired on {day}; {new}")
    proof = next((word.removeprefix(PROOF) for word in text.split() if word.startswith(PROOF)), "")
    if not proof:
        remedy = f"send {site}.pub as `unskew join` wrote it, with {PROOF}... at its end"
        raise UsageError("E503", f"this public key carries no proof of a ticket; {remedy}.")
    if not hmac.compare_digest(proof.encode(), ticket.proof(public).encode()):
        cause = "the ticket was altered on its way, or an earlier one was used, or the key is of another site"
        raise UsageError("E503", f"this key was not created with the ticket of {site}: {cause}; {new}")


class AdmittedKeys(Mapping[str, PublicKey]):
    """The admitted keys by site, in the order of clients, read from the disk on each access."""

    def __init__(self, home: Coordinator):
        self.home = home

    def __getitem__(self, site: str) -> PublicKey:
        return self.home.admitted()[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.home.admitted())

    def __len__(self) -> int:
        return len(self.home.admitted())


def parse_bounds(text: str, sites: Sequence[str]) -> dict[str, int]:
    """The bounds by site in `6000`, which holds for each of these sites, or in `a=6000,b=800`; none in "".

    Raises UsageError (E109) for a number below 1 or an unknown site.
    """
    pairs = [pair.partition("=")[::2] for pair in text.split(",")]
    if "=" not in text:
        pairs = [(site, text) for site in sites] if text else []
    bounds: dict[str, int] = {}
    for site, number in ((site.strip(), number.strip()) for site, number in pairs):
        if site not in sites or site in bounds:
            what = "names twice" if site in bounds else "names no site whose key is here:"
            near = suggestion(site, set(sites) - set(bounds))
            raise UsageError("E109", f"--samples {what} '{site}'.{near}")
        if not (number.isascii() and number.isdecimal() and int(number)):
            form = "a whole number above 0, or SITE=NUMBER,..."
            raise UsageError("E109", f"--samples takes {form}; got '{number}'.")
        bounds[site] = int(number)
    return bounds


def bound_file(home: Coordinator, site: str) -> Path:
    """The file with the largest number of samples that a site may claim."""
    return home.folder / "admitted" / f"{site}.samples"


def write_bound(home: Coordinator, site: str, samples: int) -> None:
    """Store the largest number of samples that a site may claim."""
    disk.replace(bound_file(home, site), f"{samples}\n")


def read_bounds(home: Coordinator) -> dict[str, int]:
    """The bounds by site, for sites that have one. Raises UsageError (E503) for a file without a number."""
    bounds: dict[str, int] = {}
    for site in home.sites:
        if not (path := bound_file(home, site)).exists():
            continue
        text = path.read_text().strip()
        if not text.isdecimal():
            raise UsageError("E503", f"{path} holds no number; admit the site again with --samples N.")
        bounds[site] = int(text)
    return bounds


def add_site(home: Coordinator, site: str) -> Ticket:
    """Add a site after all others in the order of clients, and write its ticket.

    Runs in progress continue without it. Raises UsageError: E161 if the name exists, E109 for an invalid
    name.
    """
    disk.check_name(site)
    if site in home.sites:
        raise UsageError("E161", f"{home.name} has a site '{site}' already.")
    wider = _write_sites(home, (*home.sites, site))
    journal.record_events(home, [("added", {"site": site})])
    return invite(wider, site)


def remove_site(home: Coordinator, site: str) -> None:
    """Remove a site with its key, its ticket and the bound on its samples.

    Raises UsageError (E503) for an unknown site or the last one.
    """
    home.require_site(site)
    if len(home.sites) == 1:
        raise UsageError("E503", f"{site} is the last site of {home.name}.")
    if site in home.admitted():
        revoke(home, site)
    _write_sites(home, tuple(other for other in home.sites if other != site))
    journal.record_events(home, [("removed", {"site": site})])
    for path in (home.ticket_file(site), bound_file(home, site)):
        path.unlink(missing_ok=True)


def _write_sites(home: Coordinator, sites: tuple[str, ...]) -> Coordinator:
    path = home.folder / "federation.json"
    facts = json.loads(path.read_text())
    disk.replace(path, json.dumps({**facts, "sites": list(sites)}, indent=1))
    return home.now()
