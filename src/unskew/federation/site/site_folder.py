"""The folder of a site: its ticket and key, and joining a federation.

When a site joins, the fingerprint that the coordinator reads out is compared before anything is created or
sent.

One process runs a site. Two processes with one key would share neither its private state nor its record of
what has left, and each would answer some of the requests. `unskew site run` locks the folder. A copied folder
or a cloned machine can only be detected by the server, from a number that is specific to a folder on a
machine.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.errors import UsageError
from unskew.federation.certificates import client_context
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.tickets import PROOF, Ticket
from unskew.system import disk


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder: its ticket, and the key that was created here."""

    folder: Path
    ticket: Ticket

    @staticmethod
    def make(folder: Path, ticket: Ticket) -> SiteFolder:
        """Create a site's key and its default policy.

        Raises UsageError: E161 if the folder already belongs to a site, E503 for a bad ticket.
        """
        ticket.check()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = PrivateKey.make()
        key.save(folder / "site.key")
        replace(ticket, secret="").write(folder / "ticket.json")
        public = key.public
        disk.replace(folder / f"{ticket.site}.pub", f"{public.text} {PROOF}{ticket.proof(public)}\n")
        disk.replace(folder / "ca.crt", ticket.authority)
        # which loads torch, and no other command about tickets needs that
        from unskew.federation.site.policy import Policy

        Policy().write(folder)
        return SiteFolder(folder, ticket)

    @staticmethod
    def open(folder: Path) -> SiteFolder:
        """The site in a folder. Raises UsageError (E503) if there is none, or its ticket is damaged."""
        if not (folder / "ticket.json").exists():
            text = f"{folder} is not a site's folder; join a federation first: unskew join TICKET"
            raise UsageError("E503", text)
        return SiteFolder(folder, Ticket.read(folder / "ticket.json"))

    @property
    def key(self) -> PrivateKey:
        """The site's key, read from its folder."""
        return PrivateKey.load(self.folder / "site.key")

    def tls(self) -> ssl.SSLContext:
        """The context of connections to the server, with the proof of this site's key."""
        return client_context(self.ticket.authority, self.ticket.site, self.key, place_of(self.folder))


BITS = 150
"""Bits of a folder's number, which is used as a certificate's serial number (at most 159 bits)."""


def place_of(folder: Path) -> int:
    """The number of this folder on this machine. It reveals neither, and copies have other numbers."""
    stat, card = folder.stat(), uuid.getnode()
    is_random = bool(card & 1 << 40)  # in place of a network card's number
    facts = socket.gethostname(), 0 if is_random else card, stat.st_dev, stat.st_ino
    secret = (folder / "site.key").read_bytes()
    digest = hashlib.sha256(repr(facts).encode() + secret).digest()
    return 1 + (int.from_bytes(digest, "big") >> (256 - BITS))


LEAST_DIGITS = 16
"""Hexadecimal digits of a fingerprint that are required; a key with so many given digits cannot be found."""


def check_fingerprint(ticket: Ticket, fingerprint: str) -> None:
    """Raises UsageError (E503) unless the ticket is signed by the coordinator with this fingerprint.

    The signature covers the authority and the address too, so this one comparison is enough.
    """
    texts = ticket.fingerprints["coordinator"], fingerprint
    expected, digits = ("".join(c for c in text.upper() if c not in ":- \t") for text in texts)
    if not set(digits) <= set("0123456789ABCDEF") or not LEAST_DIGITS <= len(digits) <= len(expected):
        pairs = len(expected) // 2
        form = f"a fingerprint is {pairs} pairs of hexadecimal digits, of which the first 8 are enough"
        source = "`unskew federation show` prints it at the coordinator"
        raise UsageError("E503", f"{form}; got '{fingerprint}'. {source}.")
    if not hmac.compare_digest(expected[: len(digits)], digits):
        what = "this ticket is of another coordinator than the one with the fingerprint that you gave"
        raise UsageError("E503", f"{what}: it was replaced on its way, or you were read another fingerprint.")
