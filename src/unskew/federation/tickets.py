"""Tickets, the folder of the coordinator that writes them, and admission to its federation.

A coordinator sends a ticket to each site. It contains the server's address, the keys to trust, and a secret
for one admission, which is valid until a date and for one key. An attacker who reads a ticket in transit
can apply in the site's name, and one who replaces it can insert other keys. Neither can preserve the
fingerprint that both ends compare.

A site's private key is created at the site and stays there. Only its public key is sent back, with the
proof that it was created with the unaltered ticket in the coordinator's folder. Admission uses the ticket up;
a revoked key is admitted again only with a new one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509

from unskew.errors import UsageError
from unskew.federation.addresses import host_port, is_host, parse_address
from unskew.federation.certificates import certify
from unskew.federation.journal import JOURNAL_FILE, Journal
from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey
from unskew.system import disk
from unskew.system.disk import lock, refuse_link

PROOF = "unskew-ticket="
"""Prefix of a ticket's proof, which is written as the comment of a public key."""


@dataclass(frozen=True)
class Ticket:
    """A site's information about its coordinator.

    coordinator: the public key that signs requests. authority: the authority's certificate as PEM. secret:
    identifies the ticket that a key was created with; "" once the site has joined. expires: the last moment
    of its use (UTC). signature: the coordinator's signature of all other fields, in hexadecimal digits.
    """

    federation: str
    host: str
    port: int
    site: str
    coordinator: str
    authority: str
    secret: str = ""
    expires: str = ""
    signature: str = ""

    @property
    def place(self) -> str:
        """The server's address, `host:port`."""
        return host_port(self.host, self.port)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the coordinator's key, which both ends compare.

        The key's signature covers the authority, so an attacker who alters a ticket in transit cannot
        preserve it.
        """
        return PublicKey.parse(self.coordinator).fingerprint

    def signed(self, key: PrivateKey) -> Ticket:
        """This ticket with the signature of the coordinator's key."""
        return replace(self, signature=key.sign(self._content()).hex())

    def check(self) -> None:
        """Raises UsageError (E503) if the ticket was altered after it was signed, or has expired."""
        again = f"ask the coordinator for a new one: unskew federation ticket {self.federation} {self.site}"
        if not (self.secret and self.expires and self.signature):
            raise UsageError("E503", f"this ticket has no secret, expiry or signature; {again}")
        if not PublicKey.parse(self.coordinator).signed(self._content(), bytes.fromhex(self.signature)):
            raise UsageError("E503", f"this ticket was altered after the coordinator signed it; {again}")
        if self.is_over():
            raise UsageError("E503", f"this ticket expired on {self.expires[:10]}; {again}")

    def is_over(self) -> bool:
        """Whether the ticket has expired."""
        return dt.datetime.now(dt.UTC) >= dt.datetime.fromisoformat(self.expires)

    def proof(self, key: PublicKey) -> str:
        """The proof (HMAC-SHA256) to a holder of this ticket that a key was created with it."""
        return hmac.new(self.secret.encode(), self._content() + key.text.encode(), hashlib.sha256).hexdigest()

    def _content(self) -> bytes:
        return json.dumps(asdict(replace(self, signature="")), sort_keys=True).encode()

    def write(self, path: Path) -> None:
        """Write the ticket to a file that only its owner can read."""
        disk.replace(path, json.dumps(asdict(self), indent=1) + "\n")
        path.chmod(0o600)

    @staticmethod
    def read(path: Path) -> Ticket:
        """Read a ticket. Raises UsageError: E111 without a file, E503 or E109 if it is not a ticket."""
        try:
            ticket = Ticket(**json.loads(path.read_text()))
            PublicKey.parse(ticket.coordinator)
            for name in (ticket.federation, ticket.site):
                disk.check_name(name)
            x509.load_pem_x509_certificate(ticket.authority.encode())
            if not (is_host(ticket.host) and isinstance(ticket.port, int) and 0 < ticket.port < 1 << 16):
                raise ValueError("neither a host nor a port")
            if not isinstance(ticket.secret, str):
                raise ValueError("a secret that is no text")
            bytes.fromhex(ticket.signature)
            if ticket.expires and dt.datetime.fromisoformat(ticket.expires).tzinfo is None:
                raise ValueError("a time without a zone")
        except FileNotFoundError:
            raise UsageError("E111", f"there is no file {path}.") from None
        except (ValueError, TypeError, AttributeError) as error:
            text = f"{path} is not a ticket; ask the coordinator to send it again."
            raise UsageError("E503", text) from error
        return ticket


DEFAULT_PORT = 8000
TICKET_DAYS = 14


@dataclass(frozen=True)
class Coordinator:
    """The coordinator's folder: federation.json, keys and certificates, tickets, and admitted public keys.

    sites: the names of all sites, in the order of client ids.
    """

    folder: Path
    name: str
    host: str
    port: int
    sites: tuple[str, ...]

    @staticmethod
    def make(folder: Path, name: str, address: str, sites: Sequence[str]) -> Coordinator:
        """Create a federation. address: HOST or HOST:PORT at which sites reach the server.

        Raises UsageError: E161 if the folder already contains one, E503 or E109 for an invalid address or
        name.
        """
        host, port = parse_address(address, DEFAULT_PORT)
        if len(set(sites)) < len(sites) or not sites:
            raise UsageError("E503", "--sites takes distinct names, separated by commas.")
        for site in (name, *sites):
            disk.check_name(site)
        if (folder / "federation.json").exists():
            raise UsageError("E161", f"{folder} already holds a federation.")
        home = Coordinator(folder, name, host, port, tuple(sites))
        for part in (folder, folder / "tickets", folder / "admitted", folder / "flower"):
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
        PrivateKey.make().save(folder / "coordinator.key")
        certify(folder, name, host)
        facts = {"name": name, "host": host, "port": port, "sites": sites}
        disk.replace(folder / "federation.json", json.dumps(facts, indent=1))
        for site in sites:
            home.ticket(site).write(home.ticket_file(site))
        return home

    @staticmethod
    def open(folder: Path) -> Coordinator:
        """The federation in a folder. Raises UsageError: E161 without one, E503 if it is damaged."""
        try:
            facts = json.loads((folder / "federation.json").read_text())
            return Coordinator(folder, **facts | {"sites": tuple(facts["sites"])})
        except FileNotFoundError:
            command = "unskew federation init NAME --host H --sites a,b"
            text = f"there is no federation in {folder}; create one: {command}"
            raise UsageError("E161", text) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError("E503", f"{folder / 'federation.json'} cannot be read: {error!r}.") from error

    def record(self, *events: tuple[str, Mapping[str, Any]]) -> None:
        """Add a line to the federation's journal for each event, a pair of its name and its facts."""
        if not events:
            return
        with open(self.folder / "audit.lock", "a", opener=refuse_link) as lock_file:
            lock(lock_file, wait=True)
            with contextlib.closing(Journal(self.folder / JOURNAL_FILE, self.key)) as journal:
                for what, facts in events:
                    journal.note(what, **facts)

    def now(self) -> Coordinator:
        """A fresh reading of the folder, because sites may have been added or removed."""
        return Coordinator.open(self.folder)

    @property
    def key(self) -> PrivateKey:
        """The coordinator's key, read from its folder."""
        return PrivateKey.load(self.folder / "coordinator.key")

    def ticket(self, site: str, days: int = TICKET_DAYS) -> Ticket:
        """A new signed ticket with a new secret. It becomes valid when it is written to `ticket_file`."""
        authority, key = (self.folder / "ca.crt").read_text(), self.key
        expires = (dt.datetime.now(dt.UTC) + dt.timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        facts = self.name, self.host, self.port, site, key.public.text, authority
        return Ticket(*facts, secret=secrets.token_urlsafe(24), expires=expires).signed(key)

    def ticket_file(self, site: str) -> Path:
        """The file of a site's ticket until it is used."""
        return self.folder / "tickets" / f"{site}.ticket"

    def admit(self, site: str, public: PublicKey) -> None:
        """Admit a site's key. Raises UsageError as `check_key`."""
        self.check_key(site, public)
        disk.replace(self.key_file(site), public.text + "\n")

    def check_key(self, site: str, public: PublicKey) -> None:
        """Raises UsageError: E503 for an unknown site or a key in use, E161 if the site has another key."""
        self.require_site(site)
        path = self.key_file(site)
        if path.exists() and path.read_text().strip() != public.text:
            commands = (f"unskew federation {verb} {self.name} {site}" for verb in ("revoke", "ticket"))
            text = f"{site} was admitted with another key; if that is to be replaced"
            raise UsageError("E161", f"{text}: {', then '.join(commands)}")
        if any(key.text == public.text for other, key in self.admitted().items() if other != site):
            raise UsageError("E503", f"this key already belongs to another site; {site} must create its own.")

    def require_site(self, site: str) -> None:
        """Raises UsageError (E503) if the federation has no site of this name."""
        if site not in self.sites:
            raise UsageError("E503", f"{self.name} has no site '{site}'; it has {', '.join(self.sites)}.")

    @property
    def superlink(self) -> Path:
        """The unix socket of Flower's server, in a folder that only this user can enter."""
        return self.folder / "flower" / "superlink"

    def key_file(self, site: str) -> Path:
        """The file with the public key of an admitted site."""
        return self.folder / "admitted" / f"{site}.pub"

    def admitted(self) -> dict[str, PublicKey]:
        """The public keys of admitted sites, in the order of the federation's sites."""
        paths = {site: self.key_file(site) for site in self.now().sites}
        return {site: PublicKey.parse(path.read_text()) for site, path in paths.items() if path.exists()}


def applicants(home: Coordinator, texts: Mapping[str, str]) -> dict[str, PublicKey]:
    """The keys in the texts of SITE.pub, by site, if all of them may be admitted. Nothing is written.

    An admitted key may come again. Raises UsageError: E161 if a site has
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
    home.record(("admitted", {"site": site, "key": public.fingerprint}))
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
    home.record(("ticket", {"site": site, "expires": ticket.expires}))
    return ticket


def revoke(home: Coordinator, site: str) -> PublicKey:
    """Revoke a site's key. Raises UsageError: E503 for an unknown site, E161 for one not admitted."""
    home.require_site(site)
    key = home.admitted().get(site)
    if key is None:
        raise UsageError("E161", f"{site} is not admitted, so that there is nothing to take back.")
    home.key_file(site).unlink()
    home.record(("revoked", {"site": site, "key": key.fingerprint}))
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


def add_site(home: Coordinator, site: str) -> Ticket:
    """Add a site after all others in the order of clients, and write its ticket.

    Runs in progress continue without it. Raises UsageError: E161 if the name exists, E109 for an invalid
    name.
    """
    disk.check_name(site)
    if site in home.sites:
        raise UsageError("E161", f"{home.name} has a site '{site}' already.")
    wider = _write_sites(home, (*home.sites, site))
    home.record(("added", {"site": site}))
    return invite(wider, site)


def remove_site(home: Coordinator, site: str) -> None:
    """Remove a site with its key and its ticket.

    Raises UsageError (E503) for an unknown site or the last one.
    """
    home.require_site(site)
    if len(home.sites) == 1:
        raise UsageError("E503", f"{site} is the last site of {home.name}.")
    if site in home.admitted():
        revoke(home, site)
    _write_sites(home, tuple(other for other in home.sites if other != site))
    home.record(("removed", {"site": site}))
    home.ticket_file(site).unlink(missing_ok=True)


def _write_sites(home: Coordinator, sites: tuple[str, ...]) -> Coordinator:
    path = home.folder / "federation.json"
    facts = json.loads(path.read_text())
    disk.replace(path, json.dumps({**facts, "sites": list(sites)}, indent=1))
    return home.now()
