"""How a site proves its key when it connects: mutual TLS with a certificate that the site signs itself.

The certificate of a site names the fingerprint of the site's key as its issuer, and is signed with that key. The server
makes an anchor for every admitted key: a certificate for the key under the same name. TLS then accepts a connection only
from somebody who holds the private half of an admitted key. Nothing has to be sent to a site or renewed, and removing a
key takes effect with the next connection.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from unskew.deploy.certificates import AUTHORITY, LEAF, Issuer, named
from unskew.deploy.identity import Private, Public

DAYS = 3650
"""How long these certificates are valid. Whether a site may connect depends on whether its key is admitted."""


def connecting(authority: str, site: str, key: Private, place: int | None = None) -> ssl.SSLContext:
    """What a site's connections must satisfy. authority: the certificate, as PEM, that must have signed the server's.

    place: from where the key is used (`place.py`), which the site's certificate has as its serial number.
    """
    context = ssl.create_default_context(cadata=authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python sets from 3.13 on
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.key.private_bytes(serialization.Encoding.PEM, *form)
    _load(context, _own(site, key, place).encode() + secret)
    return context


def accepting(certificate: Path, private: Path, admitted: Iterable[Public]) -> ssl.SSLContext:
    """What connections to the server must satisfy: TLS 1.2 or 1.3, and the proof of one of these keys.

    A session is never resumed, because a site whose key has been removed meanwhile would not have to prove it again.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, private)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an anchor is trusted as it is, whoever signed it
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    signer = ec.generate_private_key(ec.SECP384R1())
    for anchor in [_anchor(key, signer) for key in admitted]:
        context.load_verify_locations(cadata=anchor)
    return context


def proven(certificate: bytes | None) -> str:
    """The fingerprint of the key in a certificate (DER) that TLS has accepted; "" if there is none."""
    if not certificate:
        return ""
    key = x509.load_der_x509_certificate(certificate).public_key()
    return Public(key).fingerprint if isinstance(key, ec.EllipticCurvePublicKey) else ""


def place_in(certificate: bytes) -> int:
    """From where the key of a site's certificate (DER) is used."""
    return x509.load_der_x509_certificate(certificate).serial_number


def _own(site: str, key: Private, place: int | None) -> str:
    issuer = Issuer(_issuer(key.public), key.key, DAYS)
    return _pem(issuer.certificate(named(site), key.public.key, LEAF, serial=place))


def _anchor(key: Public, signer: ec.EllipticCurvePrivateKey) -> str:
    return _pem(Issuer(named("unskew"), signer, DAYS).certificate(_issuer(key), key.key, AUTHORITY))


def _issuer(key: Public) -> x509.Name:
    return named(f"key {key.fingerprint}")


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Python's ssl reads keys from files only. On Linux this one is in memory, elsewhere it has mode 0600 and is removed."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("unskew"), "wb", buffering=0) as file:
            file.write(chain)
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile(prefix="unskew-") as file:
        file.write(chain)
        file.flush()
        context.load_cert_chain(file.name)
