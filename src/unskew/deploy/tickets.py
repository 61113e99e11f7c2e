"""A federation on disk: the coordinator's folder with its certificates, a site's folder with its key, the ticket between.

A ticket holds no secret: where the server is, the authority that signed its certificate, the key that signs its
requests, and the site's name. A site's private key is made at the site and stays there; its public key goes back.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unskew import disk
from unskew.deploy.identity import Private, Public, write_secret
from unskew.engine.disk.folder import check_name
from unskew.errors import UsageError

DAYS = 365
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Coordinator:
    """`folder/`: federation.json, keys and certificates, `tickets/` to give out, `admitted/` public keys that came back."""

    folder: Path
    name: str
    host: str
    port: int
    sites: tuple[str, ...]
    tls: bool = True

    @staticmethod
    def make(folder: Path, name: str, host: str, sites: list[str], tls: bool = True) -> Coordinator:
        """A new federation. Raises UsageError: E502 if it exists, E503 for names or a host nobody can use."""
        host, _, port = host.partition(":")
        if not _HOST.fullmatch(host) or not (port or "8000").isdigit() or not 0 < int(port or 8000) < 65536:
            raise UsageError("E503", f"--host should be NAME or NAME:PORT, got '{host}{':' + port if port else ''}'.")
        if len(set(sites)) < len(sites) or not sites:
            raise UsageError("E503", "--sites should be different names, separated by commas.")
        for site in (name, *sites):
            check_name(site)
        if (folder / "federation.json").exists():
            raise UsageError("E502", f"{folder} holds a federation already.")
        made = Coordinator(folder, name, host, int(port or 8000), tuple(sites), tls)
        for part in (folder, folder / "tickets", folder / "admitted", folder / "flower"):
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
        Private.make().save(folder / "coordinator.key")
        if tls:
            _certify(folder, name, host)
        facts = {"name": name, "host": host, "port": made.port, "sites": sites, "tls": tls}
        disk.replace(folder / "federation.json", json.dumps(facts, indent=1))
        for site in sites:
            made.ticket(site).write(folder / "tickets" / f"{site}.ticket")
        return made

    @staticmethod
    def open(folder: Path) -> Coordinator:
        try:
            facts = json.loads((folder / "federation.json").read_text())
            return Coordinator(folder, facts["name"], facts["host"], facts["port"], tuple(facts["sites"]), facts["tls"])
        except FileNotFoundError:
            text = f"there is no federation in {folder}; make one: unskew federation init NAME --host H --sites a,b"
            raise UsageError("E502", text) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError("E503", f"{folder / 'federation.json'} cannot be read: {error!r}.") from error

    @property
    def key(self) -> Private:
        """What signs requests to sites."""
        return Private.load(self.folder / "coordinator.key")

    def ticket(self, site: str) -> Ticket:
        authority = (self.folder / "ca.crt").read_text() if self.tls else ""
        return Ticket(self.name, self.host, self.port, site, self.key.public.text, authority)

    def admit(self, site: str, public: Public) -> None:
        """Raises UsageError: E503 for a site without a ticket, E502 if the site has another key already."""
        if site not in self.sites:
            raise UsageError("E503", f"{self.name} has no site '{site}'; it has {', '.join(self.sites)}.")
        path = self.folder / "admitted" / f"{site}.pub"
        if path.exists() and path.read_text().strip() != public.text:
            raise UsageError("E502", f"{site} was admitted with another key; remove {path} first if that is meant.")
        if any(key.text == public.text for other, key in self.admitted().items() if other != site):
            raise UsageError("E503", f"this key belongs to another site already; {site} must make its own.")
        disk.replace(path, public.text + "\n")

    def admitted(self) -> dict[str, Public]:
        """In the order of the federation's sites."""
        paths = {site: self.folder / "admitted" / f"{site}.pub" for site in self.sites}
        return {site: Public.parse(path.read_text()) for site, path in paths.items() if path.exists()}


@dataclass(frozen=True)
class Ticket:
    """What a site needs to know of its coordinator."""

    federation: str
    host: str
    port: int
    site: str
    coordinator: str
    authority: str

    def write(self, path: Path) -> None:
        disk.replace(path, json.dumps(self.__dict__, indent=1) + "\n")

    @staticmethod
    def read(path: Path) -> Ticket:
        """Raises UsageError: E111 if there is no file, E503 if it is no ticket."""
        try:
            facts = json.loads(path.read_text())
            made = Ticket(**facts)
            Public.parse(made.coordinator)
            check_name(made.site)
            if made.authority:
                x509.load_pem_x509_certificate(made.authority.encode())
            if not _HOST.fullmatch(made.host) or not isinstance(made.port, int):
                raise ValueError("no host")
        except FileNotFoundError:
            raise UsageError("E111", f"there is no file {path}.") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError("E503", f"{path} is no ticket; ask the coordinator for it again.") from error
        return made


@dataclass(frozen=True)
class Joined:
    """A site's folder: the ticket and the key made here."""

    folder: Path
    ticket: Ticket

    @staticmethod
    def make(folder: Path, ticket: Ticket) -> Joined:
        """Raises UsageError (E502) if the folder belongs to a site already."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = Private.make()
        key.save(folder / "site.key")
        ticket.write(folder / "ticket.json")
        disk.replace(folder / f"{ticket.site}.pub", key.public.text + "\n")
        if ticket.authority:
            disk.replace(folder / "ca.crt", ticket.authority)
        return Joined(folder, ticket)

    @staticmethod
    def open(folder: Path) -> Joined:
        if not (folder / "ticket.json").exists():
            raise UsageError("E503", f"{folder} is no site's folder; join a federation first: unskew join TICKET")
        return Joined(folder, Ticket.read(folder / "ticket.json"))

    @property
    def key(self) -> Private:
        return Private.load(self.folder / "site.key")


def _certify(folder: Path, name: str, host: str) -> None:
    """ca.crt, server.crt and server.key. The authority's own key is used here once and never written."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _called(f"unskew federation {name}")
    ca = _certificate(issuer, issuer, authority, authority, x509.BasicConstraints(ca=True, path_length=0), ())
    names = _names(host)
    crt = _certificate(
        _called(host), issuer, server, authority, x509.BasicConstraints(ca=False, path_length=None), names
    )
    pem = serialization.Encoding.PEM
    disk.replace(folder / "ca.crt", ca.public_bytes(pem))
    disk.replace(folder / "server.crt", crt.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_secret(folder / "server.key", server.private_bytes(pem, *form))


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _names(host: str) -> tuple[x509.GeneralName, ...]:
    """The host and this machine, for the coordinator's own commands."""
    local = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    try:
        return (x509.IPAddress(ipaddress.ip_address(host)), *local)
    except ValueError:
        return (x509.DNSName(host), *local)


def _usage(authority: bool) -> x509.KeyUsage:
    """What a key is for. Strict checks, which Python's ssl makes from 3.13 on, refuse a certificate that does not say it."""
    asked = {"key_cert_sign": authority, "crl_sign": authority, "digital_signature": not authority}
    never = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**asked, **dict.fromkeys(never, False))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    role: x509.BasicConstraints,
    names: tuple[x509.GeneralName, ...],
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(role, critical=True)
        .add_extension(_usage(role.ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return made.sign(by, hashes.SHA256())
