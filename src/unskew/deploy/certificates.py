"""The TLS certificates of a federation: its own authority, which signs the certificate of one server.

The authority's private key signs once and is never written, so nobody can issue a second certificate later.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unskew import disk
from unskew.deploy.identity import write_secret

DAYS = 365
"""How long the server's certificate is valid."""
AUTHORITY = x509.BasicConstraints(ca=True, path_length=0)
"""The role of a certificate whose key may sign others."""
LEAF = x509.BasicConstraints(ca=False, path_length=None)
"""The role of a certificate whose key may not."""


def certify(folder: Path, name: str, host: str) -> None:
    """Write ca.crt, server.crt and server.key (mode 0600) for a federation's server at `host`."""
    authority = Issuer(named(f"unskew federation {name}"), ec.generate_private_key(ec.SECP256R1()))
    server_key = ec.generate_private_key(ec.SECP256R1())
    root = authority.certificate(authority.name, authority.key.public_key(), AUTHORITY)
    server = authority.certificate(named(host), server_key.public_key(), LEAF, _addresses(host))
    pem = serialization.Encoding.PEM
    disk.replace(folder / "ca.crt", root.public_bytes(pem))
    disk.replace(folder / "server.crt", server.public_bytes(pem))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_secret(folder / "server.key", server_key.private_bytes(pem, *private))


@dataclass(frozen=True)
class Issuer:
    """An authority that signs certificates, valid for so many days."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    days: int = DAYS

    def certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        role: x509.BasicConstraints,
        addresses: tuple[x509.GeneralName, ...] = (),
    ) -> x509.Certificate:
        """A signed certificate of `key`. addresses: the hosts that may present it."""
        now = dt.datetime.now(dt.UTC)
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=self.days))
            .add_extension(role, critical=True)
            .add_extension(_usage(role.ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_id, critical=False)
        )
        if addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def named(name: str) -> x509.Name:
    """The name of a subject or an issuer."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _addresses(host: str) -> tuple[x509.GeneralName, ...]:
    """The host, and this machine for the coordinator's own commands."""
    local = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    try:
        return (x509.IPAddress(ipaddress.ip_address(host)), *local)
    except ValueError:
        return (x509.DNSName(host), *local)


def _usage(authority: bool) -> x509.KeyUsage:
    """What a key may be used for. From Python 3.13 on, ssl rejects an authority whose certificate does not say so."""
    return x509.KeyUsage(
        key_cert_sign=authority,
        crl_sign=authority,
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
