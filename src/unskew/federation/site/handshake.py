"""Checks of a site's way to the server: can it be reached, is its certificate the federation's, is the clock
right.

Flower refuses a site with a clock more than 5 s ahead of the server's or more than 305 s behind it.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse

from unskew.errors import UnskewError
from unskew.federation.addresses import connect, proxy_for
from unskew.federation.site.site_folder import SiteFolder

OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for a certificate that is not yet or no longer valid."""
MOST_AHEAD_S, MOST_BEHIND_S = 5.0, 305.0


def judge_clock(ahead_s: float) -> tuple[bool, str]:
    """(True if the server accepts a clock so many seconds ahead of its own, a sentence about it)."""
    way = "ahead of" if ahead_s > 0 else "behind"
    text = (
        f"{abs(ahead_s):.0f} s {way} the server's" if abs(ahead_s) >= 1 else "less than 1 s from the server's"
    )
    if -MOST_BEHIND_S < ahead_s < MOST_AHEAD_S:
        return True, text
    rule = (
        f"the server lets nobody in who is more than {MOST_AHEAD_S:.0f} s ahead or {MOST_BEHIND_S:.0f} s"
        " behind"
    )
    remedy = "set this machine's clock, or the server's: sudo timedatectl set-ntp true"
    return False, f"this machine's clock is {text}, and {rule}; {remedy}"


def clock_question(verify_code: int) -> str:
    """A hint at this machine's clock if a certificate seems expired or not yet valid; else ""."""
    if verify_code not in OUT_OF_TIME:
        return ""
    return (
        f" This machine's clock says {time.strftime('%Y-%m-%d')}; if that is wrong: sudo timedatectl set-ntp"
        " true"
    )


TIMEOUT_S = 5.0
RENEWAL_DAYS = 7
"""A certificate that is valid for fewer days fails the check."""
PLAIN_TEXT_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""Reasons of ssl for plain text instead of a handshake."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    ok: bool
    text: str


def rejection(joined: SiteFolder) -> str:
    """Why this site can never connect in the current state: a certificate, TLS on one side only, a clock. ""
    if it may.

    An absent server, or a proxy that accepts connections in its place, is not a reason.
    """
    findings = {f.what: f for f in network(joined)}
    clock = findings.get("clock")
    if clock and not clock.ok:
        return clock.text
    # a certificate that expires soon fails its check, and still lets sites connect
    handshake_done = {"clock", "admission"} & findings.keys()
    certificate = findings.get("certificate")
    return certificate.text if certificate and not certificate.ok and not handshake_done else ""


def network(joined: SiteFolder) -> list[Finding]:
    """Check that the server can be reached, then its certificate and its clock."""
    ticket, began = joined.ticket, time.monotonic()
    where = ticket.place
    try:
        with connect(ticket.host, ticket.port, bool(ticket.authority), TIMEOUT_S) as line:
            latency_ms = (time.monotonic() - began) * 1000
            proxy = proxy_for(ticket.host) if ticket.authority else None
            through = f", by the proxy {proxy.hostname}" if proxy else ""
            reached = Finding("network", True, f"{where} answers in {latency_ms:.0f} ms{through}")
            return [reached, *(certificate_of(joined, line) if ticket.authority else [_check_plain(line)])]
    except OSError as error:
        text = f"{where} cannot be reached: {error}. Is the server running, and is its port open?"
        return [Finding("network", False, text)]


def certificate_of(joined: SiteFolder, line: socket.socket) -> list[Finding]:
    """Check the certificate of the server on this connection, then its clock."""
    try:
        context = joined.tls()
    except UnskewError as error:  # the key is missing, or open to others
        return [Finding("certificate", False, str(error))]
    assert context is not None
    try:
        with context.wrap_socket(line, server_hostname=joined.ticket.host) as tls:
            expires_s = ssl.cert_time_to_seconds(str((tls.getpeercert() or {})["notAfter"]))
            days = (dt.datetime.fromtimestamp(expires_s, dt.UTC) - dt.datetime.now(dt.UTC)).days
            text = f"signed by the federation's authority, valid for {days} more days"
            return [Finding("certificate", days > RENEWAL_DAYS, text), _clock(tls, joined.ticket.place)]
    except ssl.SSLCertVerificationError as error:
        text = f"the server's certificate is rejected: {error.verify_message}."
        return [Finding("certificate", False, text + clock_question(error.verify_code))]
    except ssl.SSLError as error:
        if error.reason in PLAIN_TEXT_REASONS:
            return [Finding("certificate", False, f"the server does not speak TLS: {error}.")]
        return [_closed_connection(error)]
    except OSError as error:
        return [_closed_connection(error)]


def _closed_connection(error: OSError) -> Finding:
    text = (
        f"the connection was accepted, and closed again: {error}. Does a proxy stand before a server that is"
        " down?"
    )
    return Finding("handshake", False, text)


def _check_plain(line: socket.socket) -> Finding:
    """Check that a server speaks plain text if the ticket says that TLS is disabled."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(line):
            return Finding(
                "certificate", False, "the server speaks TLS, but this site's ticket is for plain text."
            )
    except OSError:
        return Finding("certificate", True, "TLS is DISABLED in this federation")


def _clock(tls: ssl.SSLSocket, place: str) -> Finding:
    """Check the clock by the Date header of any HTTP response. A key that is not admitted gets no
    response.
    """
    asked = dt.datetime.now(dt.UTC)
    answer = HTTPResponse(tls)
    try:
        tls.sendall(f"GET / HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
        answer.begin()
    except (ConnectionError, ssl.SSLError):
        text = (
            "the server closes the connection without an answer, as it does with a key that is not admitted"
        )
        return Finding("admission", False, f"{text}. Is this site's key admitted?")
    except (OSError, HTTPException):
        return Finding("clock", True, "the server does not tell the time")
    try:
        server_time = parsedate_to_datetime(str(answer.getheader("Date")))
    except (ValueError, TypeError, IndexError):
        return Finding("clock", True, "the server does not tell the time")
    answered = dt.datetime.now(
        dt.UTC
    )  # the header gives whole seconds, and was written between these two moments
    early_s, late_s = (asked - server_time).total_seconds() - 1, (answered - server_time).total_seconds()
    return Finding("clock", *judge_clock(early_s if early_s > 0 else late_s if late_s < 0 else 0.0))
