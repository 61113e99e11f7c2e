"""The TLS certificates of a federation, and a site's proof of its key in a connection.

A federation has its own authority, which signs the certificate of one server. Its key is then discarded, so
that it cannot sign another one. Both certificates are valid for ten years.

A site proves its key by mutual TLS with a self-signed certificate that names the fingerprint of the site's
key as its issuer. The server makes an anchor for every admitted key: a certificate for the key under that
name. TLS then accepts a connection only from the owner of the private half of an admitted key. Nothing has
to be sent to a site or renewed, and the removal of a key takes effect with the next connection.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unskew.errors import UsageError
from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey, write_secret
from unskew.system import disk

DAYS = 3650
"""Days for which certificates are valid. Whether a site may connect depends on its admission."""
_PEM = serialization.Encoding.PEM
AUTHORITY = x509.BasicConstraints(ca=True, path_length=0)
LEAF = x509.BasicConstraints(ca=False, path_length=None)


def certify(folder: Path, name: str, host: str) -> None:
    """Write ca.crt, server.crt and server.key (mode 0600) for a server at `host`."""
    key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = Issuer(x509_name(f"unskew federation {name}"), key)
    root = authority.certificate(authority.name, authority.key.public_key(), AUTHORITY)
    server = authority.certificate(x509_name(host), server_key.public_key(), LEAF, _addresses(host))
    disk.replace(folder / "ca.crt", root.public_bytes(_PEM))
    disk.replace(folder / "server.crt", server.public_bytes(_PEM))
    write_secret(folder / "server.key", _private_bytes(server_key))


def days_left(path: Path) -> int:
    """Days for which the certificate in a file is still valid; below 0 once it has expired.

    Raises UsageError (E503) for a file without one.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError("E503", f"{path} holds no certificate: {error}.") from error
    return (certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)).days


@dataclass(frozen=True)
class Issuer:
    """An authority that signs certificates."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey

    def certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        role: x509.BasicConstraints,
        addresses: tuple[x509.GeneralName, ...] = (),
        serial: int | None = None,
    ) -> x509.Certificate:
        """A signed certificate of `key`. addresses: its hosts. serial: its number (default: random)."""
        now = dt.datetime.now(dt.UTC)
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(serial or x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=DAYS))
            .add_extension(role, critical=True)
            .add_extension(_usage(role.ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_id, critical=False)
        )
        if addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def x509_name(name: str) -> x509.Name:
    """The name of a certificate's subject or issuer, cut off after 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _addresses(host: str) -> tuple[x509.GeneralName, ...]:
    """The host, and this machine for the coordinator's own commands."""
    local = ("localhost", "127.0.0.1", "::1")
    return tuple(map(_address, dict.fromkeys((host, *local))))


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(authority: bool) -> x509.KeyUsage:
    """The permitted uses of a key, without which ssl of Python 3.13 rejects an authority."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    others += ("encipher_only", "decipher_only")
    unused = dict.fromkeys(others, False)
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **unused
    )


def client_context(authority: str, site: str, key: PrivateKey, place: int | None = None) -> ssl.SSLContext:
    """The TLS context of a site. authority: PEM certificate that must have signed the server's certificate.

    place: the number of the site's folder (`place_of`), used as the serial number of the site's
    certificate.
    """
    context = ssl.create_default_context(cadata=authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python sets from 3.13 on
    issuer = Issuer(_issuer(key.public), key.key)
    certificate = issuer.certificate(x509_name(site), key.public.key, LEAF, serial=place)
    _load(context, certificate.public_bytes(_PEM) + _private_bytes(key.key))
    return context


def server_context(certificate: Path, private: Path, admitted: Iterable[PublicKey]) -> ssl.SSLContext:
    """The TLS context of the server: TLS 1.2 or 1.3, and proof of an admitted key.

    Sessions are never resumed, because a resumed session does not prove the key again, which may have been
    removed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, private)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an anchor is trusted with any signature
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    signer = Issuer(x509_name("unskew"), ec.generate_private_key(ec.SECP384R1()))
    for key in admitted:
        anchor = signer.certificate(_issuer(key), key.key, AUTHORITY)
        context.load_verify_locations(cadata=anchor.public_bytes(_PEM).decode())
    return context


def certified_fingerprint(certificate: bytes | None) -> str:
    """The fingerprint of the key in an accepted certificate (DER); "" without a certificate."""
    if not certificate:
        return ""
    key = x509.load_der_x509_certificate(certificate).public_key()
    return PublicKey(key).fingerprint if isinstance(key, ec.EllipticCurvePublicKey) else ""


def place_in(certificate: bytes) -> int:
    """The number of a site's folder, from its certificate (DER)."""
    return x509.load_der_x509_certificate(certificate).serial_number


def _issuer(key: PublicKey) -> x509.Name:
    return x509_name(f"key {key.fingerprint}")


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a key, which ssl reads from files only: in memory on Linux, else of mode 0600."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("unskew"), "wb", buffering=0) as file:
            file.write(chain)
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile(prefix="unskew-") as file:
        file.write(chain)
        file.flush()
        context.load_cert_chain(file.name)
