"""The folder of a site: its ticket and key, joining a federation, and the checks before it takes part: key,
the way to the server, policy, data, versions.

When a site joins, the fingerprint that the coordinator reads out is compared before anything is created or
sent.

One process runs a site. Two processes with one key would share neither its private state nor its record of
what has left, and each would answer some of the requests. `unskew site run` locks the folder. A copied folder
or a cloned machine can only be detected by the server, from a number that is specific to a folder on a
machine.

Flower refuses a site with a clock more than 5 s ahead of the server's or more than 305 s behind it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import socket
import ssl
import time
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from unskew.errors import UnskewError, UsageError
from unskew.federation.certificates import client_context
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.tickets import PROOF, Ticket
from unskew.system import disk

if TYPE_CHECKING:
    from unskew.federation.site.study_review import Study


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
    texts = ticket.fingerprint, fingerprint
    expected, digits = ("".join(c for c in text.upper() if c not in ":- \t") for text in texts)
    if not set(digits) <= set("0123456789ABCDEF") or not LEAST_DIGITS <= len(digits) <= len(expected):
        pairs = len(expected) // 2
        form = f"a fingerprint is {pairs} pairs of hexadecimal digits, of which the first 8 are enough"
        source = "`unskew federation show` prints it at the coordinator"
        raise UsageError("E503", f"{form}; got '{fingerprint}'. {source}.")
    if not hmac.compare_digest(expected[: len(digits)], digits):
        what = "this ticket is of another coordinator than the one with the fingerprint that you gave"
        raise UsageError("E503", f"{what}: it was replaced on its way, or you were read another fingerprint.")


OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for a certificate that is not yet or no longer valid."""
MOST_AHEAD_S, MOST_BEHIND_S = 5.0, 305.0
SET_CLOCK = "sudo timedatectl set-ntp true"
TIMEOUT_S = 5.0
PLAIN_TEXT_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""Reasons of ssl for plain text instead of a handshake."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    ok: bool
    text: str


def rejection(joined: SiteFolder) -> str:
    """Why this site can never connect in the current state: a certificate, or a clock. "" if it may.

    An absent server, or a proxy that accepts connections in its place, is not a reason.
    """
    return next((f.text for f in network(joined) if f.what in ("clock", "certificate") and not f.ok), "")


def network(joined: SiteFolder) -> list[Finding]:
    """Check that the server can be reached, then its certificate and its clock."""
    place, began = joined.ticket.place, time.monotonic()
    try:
        connection = _connection(joined.ticket.host, joined.ticket.port, joined.tls())
        connection.connect()
    except UnskewError as error:  # the key is missing, or open to others
        return [Finding("certificate", False, str(error))]
    except ssl.SSLCertVerificationError as error:
        text = f"the server's certificate is rejected: {error.verify_message}."
        if error.verify_code in OUT_OF_TIME:
            text += f" This machine's clock says {time.strftime('%Y-%m-%d')}; if that is wrong: {SET_CLOCK}"
        return [Finding("certificate", False, text)]
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason in PLAIN_TEXT_REASONS:
            return [Finding("certificate", False, f"the server does not speak TLS: {error}.")]
        text = f"{place} cannot be reached: {error}. Is the server running, and is its port open?"
        return [Finding("network", False, text)]
    answers = Finding("network", True, f"{place} answers in {(time.monotonic() - began) * 1000:.0f} ms")
    expires_s = ssl.cert_time_to_seconds(str((connection.sock.getpeercert() or {})["notAfter"]))
    days = (dt.datetime.fromtimestamp(expires_s, dt.UTC) - dt.datetime.now(dt.UTC)).days
    text = f"signed by the federation's authority, valid for {days} more days"
    return [answers, Finding("certificate", True, text), _clock(connection)]


def _connection(host: str, port: int, context: ssl.SSLContext) -> HTTPSConnection:
    """A connection to be opened, through the proxy in HTTPS_PROXY if there is one. `unskew site run` uses it
    too, because its libraries read the same variables."""
    text = urllib.request.getproxies().get("https", "")
    if not text or urllib.request.proxy_bypass(host):
        return HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    proxy, headers = urlsplit(text if "://" in text else f"http://{text}"), dict[str, str]()
    if proxy.username:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    connection = HTTPSConnection(str(proxy.hostname), proxy.port or 80, timeout=TIMEOUT_S, context=context)
    connection.set_tunnel(host, port, headers)
    return connection


def _clock(connection: HTTPSConnection) -> Finding:
    """Check the clock by the Date header of any response. A key that is not admitted gets none."""
    asked = dt.datetime.now(dt.UTC)
    try:
        connection.request("GET", "/")
        server_time = parsedate_to_datetime(str(connection.getresponse().getheader("Date")))
    except (ConnectionError, ssl.SSLError):
        text = "the server closes the connection without an answer, as with a key that is not admitted"
        return Finding("admission", False, f"{text}. Is this site's key admitted?")
    except (OSError, HTTPException, ValueError, TypeError, IndexError):
        return Finding("clock", True, "the server does not tell the time")
    finally:
        connection.close()
    # the header gives whole seconds, and was written between these two moments
    early_s = (asked - server_time).total_seconds() - 1
    late_s = (dt.datetime.now(dt.UTC) - server_time).total_seconds()
    return judge_clock(max(early_s, min(late_s, 0.0)))


def judge_clock(ahead_s: float) -> Finding:
    """The check of a clock so many seconds ahead of the server's."""
    text = "less than 1 s from the server's"
    if abs(ahead_s) >= 1:
        text = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's"
    if -MOST_BEHIND_S < ahead_s < MOST_AHEAD_S:
        return Finding("clock", True, text)
    rule = f"the server accepts at most {MOST_AHEAD_S:.0f} s ahead and {MOST_BEHIND_S:.0f} s behind"
    text = f"this machine's clock is {text}, and {rule}"
    return Finding("clock", False, f"{text}; set this machine's clock, or the server's: {SET_CLOCK}")


def check_site(folder: Path, data: str, classes: Sequence[str], for_study: bool = False) -> list[Finding]:
    """All checks, or, with `for_study`, those that a study needs before there is a site.

    Raises UsageError (E503) if the folder has to be a site's and is not.
    """
    from unskew.federation.site.policy import Policy

    def policy() -> str:
        limits = Policy.read(folder)
        least = f"at least {limits.least_samples} samples behind a number"
        return f"{', '.join(limits.shares)} may leave; {least}"

    checks = [_finding("data", lambda: _data_text(data, classes)), _versions()]
    if for_study:
        text = f"{folder} is no site's yet, so its key, network and policy are not checked"
        return [Finding("folder", True, text), *checks]
    joined = SiteFolder.open(folder)
    key = _finding("key", lambda: f"mode 0600, fingerprint {joined.key.public.fingerprint}")
    return [key, *network(joined), _finding("policy", policy), *checks]


def policy_finding(folder: Path, study: Study) -> Finding:
    """The check of a study against the site's policy."""
    from unskew.federation.site.policy import Policy
    from unskew.federation.site.study_review import check_study

    def check() -> str:
        check_study(Policy.read(folder), study)
        return f"{study.method}: the policy allows it"

    return _finding("study", check)


def _finding(what: str, check: Callable[[], str]) -> Finding:
    """The finding of a check that returns its text or raises an error."""
    try:
        return Finding(what, True, check())
    except UnskewError as error:
        return Finding(what, False, str(error))


def _data_text(text: str, classes: Sequence[str]) -> str:
    from unskew.data import data_overview
    from unskew.data.standardisation import why_standardise
    from unskew.federation.site_data import load

    dataset = load(text, classes)
    lines = data_overview.table(dataset)
    if dataset.intake and (scale := why_standardise(dataset)):
        alike = "sites are not standardised unless the study's method does it, so scale the samples at all"
        lines += f"\nwarning  {scale}: {alike} sites alike"
    return lines


def _versions() -> Finding:
    from unskew.federation.protocol.hello import versions

    try:
        installed = {**versions(), "flwr": version("flwr")}
        return Finding("versions", True, ", ".join(f"{name} {number}" for name, number in installed.items()))
    except PackageNotFoundError:
        return Finding("versions", False, "E133 Flower is not installed: pip install 'unskew[flower]'")
