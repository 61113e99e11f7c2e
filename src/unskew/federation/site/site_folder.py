"""The folder of a site: its ticket, its key, how it joins a federation, and which process uses it.

When a site joins, the fingerprint that the coordinator reads out is compared before anything is made or sent.

One process runs a site. Two processes with one key would share neither its private state nor its record of
what has left, and each would answer some of the requests. In one folder a lock keeps the second out. A copied
folder, or a cloned
machine, only the server can see: by a number that is the same for every process of one folder on one machine.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.errors import StateError, UsageError
from unskew.federation.certificates import client_context
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.tickets import PROOF, Ticket
from unskew.records.run_lock import RunLock
from unskew.system import disk


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder: its ticket, and the key that was created here."""

    folder: Path
    ticket: Ticket

    @staticmethod
    def make(folder: Path, ticket: Ticket) -> SiteFolder:
        """Create a site's key and its default policy. Raises UsageError: E502 if the folder already belongs
        to a site, E503 for a bad ticket."""
        ticket.check()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = PrivateKey.make()
        key.save(folder / "site.key")
        replace(ticket, secret="").write(folder / "ticket.json")
        public = key.public
        disk.replace(folder / f"{ticket.site}.pub", f"{public.text} {PROOF}{ticket.proof(public)}\n")
        if ticket.authority:
            disk.replace(folder / "ca.crt", ticket.authority)
        from unskew.federation.site.policy import (
            Policy,  # which loads torch, and no other command about tickets needs that
        )

        Policy().write(folder)
        return SiteFolder(folder, ticket)

    @staticmethod
    def open(folder: Path) -> SiteFolder:
        """Raises UsageError (E503) if the folder is not a site's, or its ticket is damaged."""
        if not (folder / "ticket.json").exists():
            raise UsageError(
                "E503", f"{folder} is not a site's folder; join a federation first: unskew join TICKET"
            )
        return SiteFolder(folder, Ticket.read(folder / "ticket.json"))

    @property
    def key(self) -> PrivateKey:
        return PrivateKey.load(self.folder / "site.key")

    def tls(self) -> ssl.SSLContext | None:
        """What connections to the server must satisfy, and the proof of this site's key; None where TLS is
        disabled."""
        if not self.ticket.authority:
            return None
        return client_context(self.ticket.authority, self.ticket.site, self.key, place_of(self.folder))


BITS = 150
"""Of the number, which is a certificate's serial number: at most 159."""
_RANDOM = 1 << 40
"""The bit that says that Python has found no network card and made up its number."""


def place_of(folder: Path) -> int:
    """The number of this folder here. It tells neither the machine nor the folder, and copies have others."""
    stat, card = folder.stat(), uuid.getnode()
    facts = socket.gethostname(), 0 if card & _RANDOM else card, stat.st_dev, stat.st_ino
    secret = (folder / "site.key").read_bytes()
    digest = hashlib.sha256(repr(facts).encode() + secret).digest()
    return 1 + (int.from_bytes(digest, "big") >> (256 - BITS))


@contextmanager
def site_lock(folder: Path, site: str) -> Iterator[None]:
    """Within it no other process runs this site: two would share its key, its private state and its record of
    what left.

    Raises StateError (E110), naming who does.
    """
    with ExitStack() as held:
        try:
            held.enter_context(RunLock(folder))
        except StateError as error:
            who = error.text.removeprefix(f"run {folder} is in use by ").rstrip(".")
            raise StateError(
                "E110", f"site {site} is run already, by {who}; one process runs a site."
            ) from None
        yield


LEAST_DIGITS = 16
"""Hexadecimal digits of a fingerprint that must be given: nobody can make a key for so many of somebody
else's."""
FingerprintSource = Callable[[], str]


def join(folder: Path, path: Path, heard: FingerprintSource | None) -> tuple[SiteFolder, bool]:
    """The site in this folder, and whether it has only now joined with the ticket at `path`.

    A folder that has joined with this ticket before is opened, so that the same command can be given again;
    the ticket's
    file may then be gone. heard: the coordinator's fingerprint as a person has heard it, asked for before the
    key is made; None leaves the comparison to whoever reads what is printed.

    Raises UsageError: E111 without a ticket, E502 if the folder belongs to another ticket, E503 for a bad
    ticket, or for one of another coordinator than the person has spoken to.
    """
    if (folder / "ticket.json").exists():
        known = SiteFolder.open(folder)
        if path.exists() and Ticket.read(path).signature != known.ticket.signature:
            whose = (
                f"{folder} belongs to site {known.ticket.site} of {known.ticket.federation}, by another"
                " ticket"
            )
            raise UsageError("E502", f"{whose}; join with this one in a new folder: --folder NAME")
        return known, False
    ticket = Ticket.read(path)
    ticket.check()
    if heard is not None:
        check_fingerprint(ticket, heard())
    return SiteFolder.make(folder, ticket), True


def check_fingerprint(ticket: Ticket, fingerprint: str) -> None:
    """Raises UsageError (E503) unless the ticket is signed by the coordinator with this fingerprint.

    The signature covers the authority and the address too, so this one comparison is enough.
    """
    known, given = (_digits(text) for text in (ticket.fingerprints["coordinator"], fingerprint))
    if not set(given) <= set("0123456789ABCDEF") or not LEAST_DIGITS <= len(given) <= len(known):
        form = (
            f"a fingerprint is {len(known) // 2} pairs of hexadecimal digits, of which the first 8 are enough"
        )
        raise UsageError(
            "E503", f"{form}; got '{fingerprint}'. `unskew federation show` prints it at the coordinator."
        )
    if not hmac.compare_digest(known[: len(given)], given):
        what = "this ticket is of another coordinator than the one with the fingerprint that you gave"
        raise UsageError("E503", f"{what}: it was replaced on its way, or you were read another fingerprint.")


def _digits(text: str) -> str:
    """Without what stands between the pairs."""
    return "".join(c for c in text.upper() if c not in ":- \t")
