"""What can be wrong at a site before a run begins, looked at one by one."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from pathlib import Path

import numpy as np

from unskew import config
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.deploy import server, site
from unskew.deploy.loaders import load
from unskew.deploy.tickets import Joined
from unskew.engine import resolve
from unskew.errors import UnskewError
from unskew.methods import registry

TIMEOUT_S = 5.0
SKEW_S = 60.0
"""Clocks further apart than this: certificates and deadlines are then read wrongly."""


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    text: str


def check(folder: Path, data: str, classes: Sequence[str]) -> list[Finding]:
    """Raises UsageError only if the folder is no site's."""
    joined = Joined.open(folder)
    return [_key(joined), *_network(joined), _data(data, classes), _versions()]


def refused(joined: Joined) -> str:
    """Why this site will never be connected as things are: a certificate, or TLS on one side only; "" if it may be.

    A server that is not there yet is no reason.
    """
    found = {f.what: f for f in _network(joined)}
    shaken = "clock" in found  # hands: a certificate that ends soon is a finding, and no reason to stay away
    return found["certificate"].text if "certificate" in found and not found["certificate"].ok and not shaken else ""


def leaving(study: Path, data: str, classes: Sequence[str], sites: int) -> list[str]:
    """What this site would send in a study, by its own data: bytes, who reads it, guarantee, epsilon.

    Raises UsageError for a study that cannot run over a network, DataError for data that cannot be trained on.
    """
    settings = server.study(config.load(study)).replace(clients=sites)
    found = site.prepared(load(data, classes), settings)
    mine, nobody = np.arange(len(found.y)), np.arange(0)
    rows = [mine, *[nobody] * (sites - 1)]
    tests = [np.arange(len(found.y_test)), *[nobody] * (sites - 1)]
    inputs = (found.x, found.y, found.x_test, found.y_test)
    federation = Federation("site", *inputs, found.classes, Index.of(rows), Index.of(tests), "site")
    loop = resolve.loop_of(settings, registry.parse(settings.method), federation)
    loop.trainer.close()
    return site.leaving(loop.method, loop.trainer)


def _key(joined: Joined) -> Finding:
    try:
        return Finding("key", True, f"mode 0600, fingerprint {joined.key.public.fingerprint}")
    except UnskewError as error:
        return Finding("key", False, str(error))


def _network(joined: Joined) -> list[Finding]:
    """Each with its reason: no such host, refused, another authority, expired, another name, no TLS at all."""
    ticket, began = joined.ticket, time.monotonic()
    where = f"{ticket.host}:{ticket.port}"
    try:
        with socket.create_connection((ticket.host, ticket.port), TIMEOUT_S) as line:
            took = (time.monotonic() - began) * 1000
            found = [Finding("network", True, f"{where} answers in {took:.0f} ms")]
            return [*found, *(_certificate(joined, line) if ticket.authority else [_plain(line)])]
    except OSError as error:
        return [
            Finding("network", False, f"{where} cannot be reached: {error}. Does the server run, and is its port open?")
        ]


def _certificate(joined: Joined, line: socket.socket) -> list[Finding]:
    context = ssl.create_default_context(cadata=joined.ticket.authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it; the gRPC that connects later does not
    try:
        with context.wrap_socket(line, server_hostname=joined.ticket.host) as tls:
            told = tls.getpeercert() or {}
            ends = dt.datetime.fromtimestamp(ssl.cert_time_to_seconds(str(told["notAfter"])), dt.UTC)
            days = (ends - dt.datetime.now(dt.UTC)).days
            found = Finding(
                "certificate", days > 7, f"signed by the federation's authority, valid for {days} more days"
            )
            return [found, _clock(tls, joined.ticket.host)]
    except ssl.SSLCertVerificationError as error:
        return [Finding("certificate", False, f"the server's certificate is refused: {error.verify_message}.")]
    except OSError as error:
        return [Finding("certificate", False, f"the server does not speak TLS: {error}.")]


def _plain(line: socket.socket) -> Finding:
    """Where the ticket says there is no TLS: whether the server thinks so, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(line):
            return Finding("certificate", False, "the server speaks TLS, and this site's ticket is for plain text.")
    except OSError:
        return Finding("certificate", True, "TLS is OFF in this federation")


def _clock(tls: ssl.SSLSocket, host: str) -> Finding:
    """By the Date of any answer, also a refusal."""
    tls.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = HTTPResponse(tls)
    try:
        answer.begin()
        there = parsedate_to_datetime(str(answer.getheader("Date")))
    except (OSError, ValueError, TypeError, IndexError):
        return Finding("clock", True, "the server does not tell the time")
    skew = abs((dt.datetime.now(dt.UTC) - there).total_seconds())
    return Finding("clock", skew < SKEW_S, f"{skew:.0f} s from the server's")


def _data(text: str, classes: Sequence[str]) -> Finding:
    try:
        found = load(text, classes)
    except UnskewError as error:
        return Finding("data", False, str(error))
    unit = found.y.reshape(len(found.y), -1)
    held = [c for i, c in enumerate(found.classes) if bool(np.any(unit == i))]
    missing = [c for c in found.classes if c not in held]
    told = (
        f"{len(found.y):,} to train on, {len(found.y_test):,} to test on, each {list(found.shape)}; {len(held)} classes"
    )
    low, high = float(found.x.min()), float(found.x.max())
    return Finding(
        "data",
        True,
        f"{told}{f' (none of {chr(44).join(missing[:5])})' if missing else ''}; values {low:.3g} to {high:.3g}",
    )


def _versions() -> Finding:
    told = site.versions()
    try:
        import flwr

        return Finding("versions", True, ", ".join(f"{n} {v}" for n, v in {**told, "flwr": flwr.__version__}.items()))
    except ImportError:
        return Finding("versions", False, "E501 Flower is not installed: pip install 'unskew[flower]'")
