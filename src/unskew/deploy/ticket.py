"""What a coordinator sends to a site: where the server is, whom to trust, and a secret for one admission.

The secret is good until a date, and for one key. Whoever reads a ticket on its way can apply in the site's name, and
whoever replaces all of it can put keys of their own into it. Neither can keep the fingerprints that both ends compare.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from unskew import disk
from unskew.deploy.addresses import is_host, place
from unskew.deploy.identity import Private, Public, fingerprint
from unskew.errors import UsageError

PROOF = "unskew-ticket="
"""Stands before a ticket's proof, in the place of the comment of a public key."""


@dataclass(frozen=True)
class Ticket:
    """What a site needs to know about its coordinator.

    coordinator: the public key that signs requests. authority: its certificate as PEM; "" where TLS is disabled.
    secret: proves to the coordinator which ticket a key was created with; "" once the site has joined.
    expires: the last moment of its use (UTC). signature: the coordinator's, in hexadecimal digits, of all the rest.
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
        """Where the server is, as HOST:PORT."""
        return place(self.host, self.port)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the coordinator's key and, with TLS, of the authority's certificate.

        Whoever alters a ticket on its way can put keys of their own into it, but not keep these.
        """
        known = {"coordinator": Public.parse(self.coordinator).fingerprint}
        if self.authority:
            root = x509.load_pem_x509_certificate(self.authority.encode())
            known["authority"] = fingerprint(root.public_bytes(serialization.Encoding.DER))
        return known

    def signed(self, key: Private) -> Ticket:
        """This ticket with the signature of the coordinator's key."""
        return replace(self, signature=key.sign(self._content()).hex())

    def check(self) -> None:
        """Raises UsageError (E503) if the ticket was altered after it was signed, or may not be used any more."""
        again = f"ask the coordinator for a new one: unskew federation ticket {self.federation} {self.site}"
        if not (self.secret and self.expires and self.signature):
            raise UsageError("E503", f"this ticket has no secret, expiry or signature; {again}")
        if not Public.parse(self.coordinator).signed(self._content(), bytes.fromhex(self.signature)):
            raise UsageError("E503", f"this ticket was altered after the coordinator signed it; {again}")
        if self.is_over():
            raise UsageError("E503", f"this ticket expired on {self.expires[:10]}; {again}")

    def is_over(self) -> bool:
        """Whether its time is over."""
        return dt.datetime.now(dt.UTC) >= dt.datetime.fromisoformat(self.expires)

    def proof(self, key: Public) -> str:
        """What shows, to whoever holds the same ticket, that a key was created with it (HMAC-SHA256)."""
        return hmac.new(self.secret.encode(), self._content() + key.text.encode(), hashlib.sha256).hexdigest()

    def _content(self) -> bytes:
        return json.dumps(asdict(replace(self, signature="")), sort_keys=True).encode()

    def write(self, path: Path) -> None:
        disk.replace(path, json.dumps(asdict(self), indent=1) + "\n")
        path.chmod(0o600)

    @staticmethod
    def read(path: Path) -> Ticket:
        """Raises UsageError: E111 if there is no such file, E503 if it is not a ticket, E114 for the site's name."""
        try:
            ticket = Ticket(**json.loads(path.read_text()))
            Public.parse(ticket.coordinator)
            disk.check_name(ticket.site)
            if ticket.authority:
                x509.load_pem_x509_certificate(ticket.authority.encode())
            if not is_host(ticket.host) or not isinstance(ticket.port, int):
                raise ValueError("neither a host nor a port")
            bytes.fromhex(ticket.signature)
            if ticket.expires and dt.datetime.fromisoformat(ticket.expires).tzinfo is None:
                raise ValueError("a time without a zone")
        except FileNotFoundError:
            raise UsageError("E111", f"there is no file {path}.") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError("E503", f"{path} is not a ticket; ask the coordinator to send it again.") from error
        return ticket
