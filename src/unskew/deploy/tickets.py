"""A federation on disk: the coordinator's folder and a site's folder. A `Ticket` goes from one to the other.

A site's private key is created at the site and stays there; only its public key goes back, with the proof that it was
created with this ticket (`admission`).
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

from unskew import disk
from unskew.deploy.addresses import LOOPBACK, is_local, parsed
from unskew.deploy.certificates import certify
from unskew.deploy.identity import Private, Public
from unskew.deploy.place import place_of
from unskew.deploy.proof import connecting
from unskew.deploy.ticket import PROOF, Ticket
from unskew.errors import UsageError

DEFAULT_PORT = 8000
TICKET_DAYS = 14
"""How long a ticket may be used."""


@dataclass(frozen=True)
class Coordinator:
    """The coordinator's folder: federation.json, its keys and certificates, the tickets, the admitted public keys.

    sites: the names of all sites, in the order of client ids. tls: whether connections are encrypted.
    """

    folder: Path
    name: str
    host: str
    port: int
    sites: tuple[str, ...]
    tls: bool = True

    @staticmethod
    def make(folder: Path, name: str, address: str, sites: list[str], tls: bool = True) -> Coordinator:
        """Create a federation. address: HOST or HOST:PORT, where sites reach the server.

        Raises UsageError: E502 if the folder holds one already, E503 or E114 for an address or a name that is not valid.
        """
        host, port = parsed(address, DEFAULT_PORT)
        if len(set(sites)) < len(sites) or not sites:
            raise UsageError("E503", "--sites takes distinct names, separated by commas.")
        for site in (name, *sites):
            disk.check_name(site)
        if (folder / "federation.json").exists():
            raise UsageError("E502", f"{folder} already holds a federation.")
        if not tls and not is_local(host):
            raise UsageError(
                "E503", f"without TLS a federation stays on one machine: --no-tls needs a --host like {LOOPBACK}."
            )
        home = Coordinator(folder, name, host, port, tuple(sites), tls)
        for part in (folder, folder / "tickets", folder / "admitted", folder / "flower"):
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
        Private.make().save(folder / "coordinator.key")
        if tls:
            certify(folder, name, host)
        facts = {"name": name, "host": host, "port": port, "sites": sites, "tls": tls}
        disk.replace(folder / "federation.json", json.dumps(facts, indent=1))
        for site in sites:
            home.ticket(site).write(home.ticket_file(site))
        return home

    @staticmethod
    def open(folder: Path) -> Coordinator:
        """Raises UsageError: E502 if there is no federation in this folder, E503 if its federation.json is damaged."""
        try:
            facts = json.loads((folder / "federation.json").read_text())
            return Coordinator(folder, facts["name"], facts["host"], facts["port"], tuple(facts["sites"]), facts["tls"])
        except FileNotFoundError:
            text = f"there is no federation in {folder}; create one: unskew federation init NAME --host H --sites a,b"
            raise UsageError("E502", text) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError("E503", f"{folder / 'federation.json'} cannot be read: {error!r}.") from error

    def now(self) -> Coordinator:
        """The folder as it is now: sites may have been added or removed."""
        return Coordinator.open(self.folder)

    @property
    def key(self) -> Private:
        """The key that signs requests to sites."""
        return Private.load(self.folder / "coordinator.key")

    @property
    def fingerprints(self) -> dict[str, str]:
        """Those of every ticket, which both ends compare."""
        return self.ticket(self.sites[0]).fingerprints

    def ticket(self, site: str, days: int = TICKET_DAYS) -> Ticket:
        """A new ticket with a new secret, signed. It counts once it is written to `ticket_file`."""
        authority, key = (self.folder / "ca.crt").read_text() if self.tls else "", self.key
        expires = (dt.datetime.now(dt.UTC) + dt.timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        secret = secrets.token_urlsafe(24)
        return Ticket(
            self.name, self.host, self.port, site, key.public.text, authority, secret=secret, expires=expires
        ).signed(key)

    def ticket_file(self, site: str) -> Path:
        """Where the ticket of a site lies until it is used."""
        return self.folder / "tickets" / f"{site}.ticket"

    def admit(self, site: str, public: Public) -> None:
        """Let a site's key in. Raises UsageError as `check_key` does."""
        self.check_key(site, public)
        disk.replace(self.key_file(site), public.text + "\n")

    def check_key(self, site: str, public: Public) -> None:
        """Raises UsageError: E503 for a site that does not exist or a key in use, E502 if the site has another key."""
        if site not in self.sites:
            raise UsageError("E503", f"{self.name} has no site '{site}'; it has {', '.join(self.sites)}.")
        path = self.key_file(site)
        if path.exists() and path.read_text().strip() != public.text:
            again = f"unskew federation revoke {self.name} {site}, then unskew federation ticket {self.name} {site}"
            raise UsageError("E502", f"{site} was admitted with another key; if that is to be replaced: {again}")
        if any(key.text == public.text for other, key in self.admitted().items() if other != site):
            raise UsageError("E503", f"this key already belongs to another site; {site} must create its own.")

    def key_file(self, site: str) -> Path:
        """Where the public key of an admitted site is kept."""
        return self.folder / "admitted" / f"{site}.pub"

    def admitted(self) -> dict[str, Public]:
        """The public keys of admitted sites, in the order of the federation's sites."""
        paths = {site: self.key_file(site) for site in self.now().sites}
        return {site: Public.parse(path.read_text()) for site, path in paths.items() if path.exists()}


@dataclass(frozen=True)
class Joined:
    """A site's folder: its ticket, and the key that was created here."""

    folder: Path
    ticket: Ticket

    @staticmethod
    def make(folder: Path, ticket: Ticket) -> Joined:
        """Create a site's key and its default policy. Raises UsageError: E502 if the folder already belongs to a site, E503 for a bad ticket."""
        ticket.check()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = Private.make()
        key.save(folder / "site.key")
        replace(ticket, secret="").write(folder / "ticket.json")
        public = key.public
        disk.replace(folder / f"{ticket.site}.pub", f"{public.text} {PROOF}{ticket.proof(public)}\n")
        if ticket.authority:
            disk.replace(folder / "ca.crt", ticket.authority)
        from unskew.deploy.policy import Policy  # which loads torch, and no other command about tickets needs that

        Policy().write(folder)
        return Joined(folder, ticket)

    @staticmethod
    def open(folder: Path) -> Joined:
        """Raises UsageError (E503) if the folder is not a site's, or its ticket is damaged."""
        if not (folder / "ticket.json").exists():
            raise UsageError("E503", f"{folder} is not a site's folder; join a federation first: unskew join TICKET")
        return Joined(folder, Ticket.read(folder / "ticket.json"))

    @property
    def key(self) -> Private:
        return Private.load(self.folder / "site.key")

    def tls(self) -> ssl.SSLContext | None:
        """What connections to the server must satisfy, and the proof of this site's key; None where TLS is disabled."""
        if not self.ticket.authority:
            return None
        return connecting(self.ticket.authority, self.ticket.site, self.key, place_of(self.folder))
