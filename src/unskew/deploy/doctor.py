"""Checks of a site before it takes part in a run: its key, the network, the server's certificate, clocks, data, versions."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from unskew.data.intake.scale import unscaled
from unskew.deploy import clocks
from unskew.deploy.hello import versions
from unskew.deploy.judging import Study, check_study
from unskew.deploy.loaders import load
from unskew.deploy.policy import Policy
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


def check(folder: Path, data: str, classes: Sequence[str]) -> list[Finding]:
    """All checks. Raises UsageError only if the folder is not a site's."""
    joined = Joined.open(folder)
    return [_key(joined), *_network(joined), _policy(folder), _data(data, classes), _versions()]


def verdict(folder: Path, study: Study) -> Finding:
    """Whether the site's policy allows a study."""
    try:
        check_study(Policy.read(folder), study)
    except UnskewError as error:
        return Finding("study", False, str(error))
    return Finding("study", True, f"{study.method}: the policy allows it")


def rejection(joined: Joined) -> str:
    """Why this site can never connect as things are: a certificate, TLS on one side only, a clock. "" if it may connect.

    A server that is not there yet is no reason, nor a proxy that accepts connections in its place.
    """
    findings = {f.what: f for f in _network(joined)}
    clock = findings.get("clock")
    if clock and not clock.ok:
        return clock.text
    # a certificate that expires soon fails its check, and still lets sites connect
    shook_hands = {"clock", "admission"} & findings.keys()
    certificate = findings.get("certificate")
    return certificate.text if certificate and not certificate.ok and not shook_hands else ""


def _policy(folder: Path) -> Finding:
    try:
        policy = Policy.read(folder)
    except UnskewError as error:
        return Finding("policy", False, str(error))
    text = f"{', '.join(policy.shares)} may leave; at least {policy.least_samples} samples behind a number"
    return Finding("policy", True, text)


def _key(joined: Joined) -> Finding:
    try:
        return Finding("key", True, f"mode 0600, fingerprint {joined.key.public.fingerprint}")
    except UnskewError as error:
        return Finding("key", False, str(error))


def _network(joined: Joined) -> list[Finding]:
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


def _data(text: str, classes: Sequence[str]) -> Finding:
    try:
        dataset = load(text, classes)
    except UnskewError as error:
        return Finding("data", False, str(error))
    labels = np.unique(dataset.y)
    missing = [name for i, name in enumerate(dataset.classes) if i not in labels]
    lacks = f" (none of {','.join(missing[:5])})" if missing else ""
    counts = f"{len(dataset.y):,} training samples, {len(dataset.y_test):,} test samples"
    held = f"each {list(dataset.shape)}; {len(dataset.classes) - len(missing)} classes{lacks}"
    low, high = float(dataset.x.min()), float(dataset.x.max())
    scale = unscaled(dataset) if dataset.intake else ""
    remarks = [text for _, text in (dataset.intake.notes if dataset.intake else ())]
    if scale:
        remarks.append(f"{scale}: sites are not standardised, so scale the samples at all sites alike")
    return Finding("data", True, "; ".join([f"{counts}, {held}; values {low:.3g} to {high:.3g}", *remarks]))


def _versions() -> Finding:
    try:
        installed = {**versions(), "flwr": version("flwr")}
        return Finding("versions", True, ", ".join(f"{name} {number}" for name, number in installed.items()))
    except PackageNotFoundError:
        return Finding("versions", False, "E501 Flower is not installed: pip install 'unskew[flower]'")
