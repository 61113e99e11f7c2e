"""Checks of a site before it takes part: its key, the way to the server, policy, data, versions.

Flower refuses a site with a clock more than 5 s ahead of the server's or more than 305 s behind it.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from unskew.errors import UnskewError
from unskew.federation.addresses import connect, proxy_for
from unskew.federation.site.site_folder import SiteFolder

if TYPE_CHECKING:
    from unskew.data.samples.dataset import Dataset
    from unskew.federation.site.study_review import Study

OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for a certificate that is not yet or no longer valid."""
MOST_AHEAD_S, MOST_BEHIND_S = 5.0, 305.0
SET_CLOCK = "sudo timedatectl set-ntp true"
TIMEOUT_S = 5.0
MOST_COLUMNS = 20
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

    An absent server, or a proxy that accepts connections in its place, is not a reason. A certificate that
    expires soon fails its check, and still lets sites connect.
    """
    findings = {f.what: f for f in network(joined)}
    clock, certificate = findings.get("clock"), findings.get("certificate")
    if clock and not clock.ok:
        return clock.text
    handshake_done = {"clock", "admission"} & findings.keys()
    return certificate.text if certificate and not certificate.ok and not handshake_done else ""


def network(joined: SiteFolder) -> list[Finding]:
    """Check that the server can be reached, then its certificate and its clock."""
    ticket, began = joined.ticket, time.monotonic()
    try:
        with connect(ticket.host, ticket.port, bool(ticket.authority), TIMEOUT_S) as line:
            text = f"{ticket.place} answers in {(time.monotonic() - began) * 1000:.0f} ms"
            proxy = proxy_for(ticket.host) if ticket.authority else None
            text += f", by the proxy {proxy.hostname}" if proxy else ""
            checks = certificate_of(joined, line) if ticket.authority else [_check_plain(line)]
            return [Finding("network", True, text), *checks]
    except OSError as error:
        text = f"{ticket.place} cannot be reached: {error}. Is the server running, and is its port open?"
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
        if error.verify_code in OUT_OF_TIME:
            text += f" This machine's clock says {time.strftime('%Y-%m-%d')}; if that is wrong: {SET_CLOCK}"
        return [Finding("certificate", False, text)]
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason in PLAIN_TEXT_REASONS:
            return [Finding("certificate", False, f"the server does not speak TLS: {error}.")]
        text = f"the connection was accepted, and closed again: {error}"
        return [Finding("handshake", False, f"{text}. Does a proxy stand before a server that is down?")]


def _check_plain(line: socket.socket) -> Finding:
    """Check that a server speaks plain text if the ticket says that TLS is disabled."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(line):
            text = "the server speaks TLS, but this site's ticket is for plain text."
            return Finding("certificate", False, text)
    except OSError:
        return Finding("certificate", True, "TLS is DISABLED in this federation")


def _clock(tls: ssl.SSLSocket, place: str) -> Finding:
    """Check the clock by the Date header of any response. A key that is not admitted gets none."""
    asked, answer = dt.datetime.now(dt.UTC), HTTPResponse(tls)
    try:
        tls.sendall(f"GET / HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
        answer.begin()
        server_time = parsedate_to_datetime(str(answer.getheader("Date")))
    except (ConnectionError, ssl.SSLError):
        text = "the server closes the connection without an answer, as with a key that is not admitted"
        return Finding("admission", False, f"{text}. Is this site's key admitted?")
    except (OSError, HTTPException, ValueError, TypeError, IndexError):
        return Finding("clock", True, "the server does not tell the time")
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
    from unskew.data.column_statistics import columns_of
    from unskew.data.data_overview import value_range
    from unskew.data.standardisation import why_standardise
    from unskew.federation.site_data import load

    dataset = load(text, classes)
    counts = f"{len(dataset.y):,} training samples, {len(dataset.y_test):,} test samples"
    form = f"each {dataset.layout or list(dataset.shape)}; {_labels(dataset)}"
    low, high = value_range(dataset)
    remarks = [text for _, text in (dataset.intake.notes if dataset.intake else ())]
    if dataset.intake and (scale := why_standardise(dataset)):
        alike = "sites are not standardised unless the study's method does it, so scale the samples at all"
        remarks.append(f"{scale}: {alike} sites alike")
    if dataset.intake and dataset.intake.form.get("kind") == "table":
        columns = [str(column) for column in columns_of(dataset)]
        remarks.append(f"columns, to be compared with the other sites': {'; '.join(columns[:MOST_COLUMNS])}")
        if len(columns) > MOST_COLUMNS:
            remarks[-1] += f" and {len(columns) - MOST_COLUMNS} more"
    return "; ".join([f"{counts}, {form}; values {low:.3g} to {high:.3g}", *remarks])


def _labels(dataset: Dataset) -> str:
    """The labels in words: how many classes have samples and which have none; or the target's range."""
    if target := dataset.target:
        span = f"{dataset.y.min():.5g} to {dataset.y.max():.5g}"
        return f"target {target.name} from {span}, learnt as (y - {target.center:.5g}) / {target.scale:.5g}"
    used = {int(i) for i in dataset.y[dataset.y >= 0].flat}
    if dataset.several:
        used = {i for i, count in enumerate(dataset.y.sum(0)) if count}
    missing = [name for i, name in enumerate(dataset.classes) if i not in used]
    lacks = f" (none of {','.join(missing[:5])})" if missing else ""
    if dataset.several:
        return f"{len(dataset.classes)} labels, several a sample{lacks}"
    return f"{len(dataset.classes) - len(missing)} classes{lacks}"


def _versions() -> Finding:
    from unskew.federation.protocol.hello import versions

    try:
        installed = {**versions(), "flwr": version("flwr")}
        return Finding("versions", True, ", ".join(f"{name} {number}" for name, number in installed.items()))
    except PackageNotFoundError:
        return Finding("versions", False, "E133 Flower is not installed: pip install 'unskew[flower]'")
