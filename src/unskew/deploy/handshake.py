"""A site's way to the server: whether it can be reached, whether its certificate is the federation's, what its clock says."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse

from unskew.deploy import clocks
from unskew.deploy.reaching import proxy_for, reach
from unskew.deploy.tickets import Joined
from unskew.errors import UnskewError

TIMEOUT_S = 5.0
RENEWAL_DAYS = 7
"""A certificate that is valid for fewer days is a finding."""
PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""What ssl calls an answer that is text instead of a handshake."""


@dataclass(frozen=True)
class Finding:
    """One check: what was checked, whether it passed, and what was seen."""

    what: str
    ok: bool
    text: str


def rejection(joined: Joined) -> str:
    """Why this site can never connect as things are: a certificate, TLS on one side only, a clock. "" if it may connect.

    A server that is not there yet is no reason, nor a proxy that accepts connections in its place.
    """
    findings = {f.what: f for f in network(joined)}
    clock = findings.get("clock")
    if clock and not clock.ok:
        return clock.text
    # a certificate that expires soon fails its check, and still lets sites connect
    shook_hands = {"clock", "admission"} & findings.keys()
    certificate = findings.get("certificate")
    return certificate.text if certificate and not certificate.ok and not shook_hands else ""


def network(joined: Joined) -> list[Finding]:
    """Whether the server can be reached, and if so what its certificate and its clock say."""
    ticket, began = joined.ticket, time.monotonic()
    where = ticket.place
    try:
        with reach(ticket.host, ticket.port, bool(ticket.authority), TIMEOUT_S) as line:
            took_ms = (time.monotonic() - began) * 1000
            proxy = proxy_for(ticket.host) if ticket.authority else None
            through = f", by the proxy {proxy.hostname}" if proxy else ""
            reached = Finding("network", True, f"{where} answers in {took_ms:.0f} ms{through}")
            return [reached, *(certificate_of(joined, line) if ticket.authority else [_plain(line)])]
    except OSError as error:
        text = f"{where} cannot be reached: {error}. Is the server running, and is its port open?"
        return [Finding("network", False, text)]


def certificate_of(joined: Joined, line: socket.socket) -> list[Finding]:
    """Whether the certificate of the server on this connection is the federation's; if so, its clock too."""
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
        return [Finding("certificate", False, text + clocks.doubted(error.verify_code))]
    except ssl.SSLError as error:
        if error.reason in PLAIN:
            return [Finding("certificate", False, f"the server does not speak TLS: {error}.")]
        return [_hung_up(error)]
    except OSError as error:
        return [_hung_up(error)]


def _hung_up(error: OSError) -> Finding:
    text = f"the connection was accepted, and closed again: {error}. Does a proxy stand before a server that is down?"
    return Finding("handshake", False, text)


def _plain(line: socket.socket) -> Finding:
    """Where the ticket says that TLS is disabled: whether it is disabled at the server, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(line):
            return Finding("certificate", False, "the server speaks TLS, but this site's ticket is for plain text.")
    except OSError:
        return Finding("certificate", True, "TLS is DISABLED in this federation")


def _clock(tls: ssl.SSLSocket, place: str) -> Finding:
    """By the Date header of any HTTP answer, a refusal included. A key that is not admitted gets no answer."""
    asked = dt.datetime.now(dt.UTC)
    answer = HTTPResponse(tls)
    try:
        tls.sendall(f"GET / HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
        answer.begin()
    except (ConnectionError, ssl.SSLError):
        text = "the server closes the connection without an answer, as it does with a key that is not admitted"
        return Finding("admission", False, f"{text}. Is this site's key admitted?")
    except (OSError, HTTPException):
        return Finding("clock", True, "the server does not tell the time")
    try:
        there = parsedate_to_datetime(str(answer.getheader("Date")))
    except (ValueError, TypeError, IndexError):
        return Finding("clock", True, "the server does not tell the time")
    answered = dt.datetime.now(dt.UTC)  # the header gives whole seconds, and was written between these two moments
    early_s, late_s = (asked - there).total_seconds() - 1, (answered - there).total_seconds()
    return Finding("clock", *clocks.judged(early_s if early_s > 0 else late_s if late_s < 0 else 0.0))
