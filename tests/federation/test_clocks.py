"""A site's clock and the way to its server are checked as they are used."""

from __future__ import annotations

import base64
import datetime as dt
import socket
import threading
from email.utils import format_datetime
from types import SimpleNamespace

import pytest

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.test_doctor import Listener, joined_at, looked
from unskew.federation import certificates
from unskew.federation.site import handshake
from unskew.federation.tickets import Coordinator


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["b", "a"])


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("ahead_s", "ok", "said"),
    [
        (0.4, True, "less than 1 s from the server's"),
        (4.0, True, "4 s ahead of the server's"),
        (5.0, False, "clock is 5 s ahead of the server's"),
        (30.0, False, "sudo timedatectl set-ntp true"),
        (-300.0, True, "300 s behind the server's"),
        (-305.0, False, "more than 5 s ahead or 305 s behind"),
    ],
)
def test_clocks_are_judged_as_flower_does(ahead_s, ok, said):
    """N4: a site 30 s ahead was told ok, and then `site run` looped for ever."""
    judgement, text = handshake.judge_clock(ahead_s)
    assert (judgement, said in text) == (ok, True), text


@pytest.mark.flower
def test_flower_takes_clocks_as_far_off_as_we_say():
    """N4: the limits are Flower's own."""
    flower = pytest.importorskip(
        "flwr.common.constant", reason="Flower is not installed: pip install 'unskew[flower]'"
    )
    assert handshake.MOST_AHEAD_S == flower.SYSTEM_TIME_TOLERANCE
    assert handshake.MOST_BEHIND_S == flower.TIMESTAMP_TOLERANCE + flower.SYSTEM_TIME_TOLERANCE


@pytest.mark.parametrize(("server_s", "ok"), [(0, True), (3, True), (-30, False), (200, True), (400, False)])
def test_the_check_measures_the_servers_clock(tmp_path, home, server_s, ok):
    finding = looked(tmp_path, home, Listener(home, server_s).port)["clock"]
    assert finding.ok is ok, finding.text


def test_a_site_whose_clock_is_off_is_told_so_and_does_not_knock_for_ever(tmp_path, home):
    """N4: the sentence at both `site check` and `site run`."""
    joined = joined_at(tmp_path, home, Listener(home, -30).port)
    done = call("site", "run", "--data", "d.npz", "--folder", str(joined.folder), cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E503")
    assert "s ahead of the server's, and the server lets nobody in" in done.err


@pytest.mark.parametrize(("years", "said"), [(10, "not yet valid"), (-11, "has expired")])
def test_a_certificate_out_of_its_time_makes_the_clock_suspect(tmp_path, monkeypatch, years, said):
    """N4: a machine whose clock had lost its battery read that the server's certificate was wrong."""
    then = dt.datetime.now(dt.UTC) + dt.timedelta(days=365 * years)
    clock = SimpleNamespace(
        datetime=SimpleNamespace(now=lambda zone: then), timedelta=dt.timedelta, UTC=dt.UTC
    )
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "dt", clock)
        home = Coordinator.make(tmp_path / "other", "lung", "127.0.0.1:8123", ["a"])
    finding = looked(tmp_path, home, Listener(home).port)["certificate"]
    assert not finding.ok
    today = dt.date.today().isoformat()
    assert f"{said}. This machine's clock says {today}; if that is wrong: sudo timedatectl" in finding.text


class Proxy:
    """Passes on what comes after CONNECT, once. answer: what it says to CONNECT."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Fine\r\n\r\n"):
        self.answer, self.door, self.request = answer, socket.create_server(("127.0.0.1", 0)), b""
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        line, _ = self.door.accept()
        while b"\r\n\r\n" not in self.request:
            self.request += line.recv(4000)
        line.sendall(self.answer)
        if b" 200 " not in self.answer:
            return line.close()
        host, _, port = self.request.split()[1].decode().partition(":")
        there = socket.create_connection((host, int(port)))
        threading.Thread(target=self.pump, args=(there, line), daemon=True).start()
        self.pump(line, there)

    @staticmethod
    def pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(1 << 16):
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_the_check_goes_through_the_proxy_that_the_site_uses(tmp_path, home, monkeypatch):
    """N16: `site check` said the server was not there, and `site run` reached it through HTTPS_PROXY."""
    proxy, server = Proxy(), Listener(home)
    monkeypatch.setenv("HTTPS_PROXY", f"http://clinic:s%20cret@127.0.0.1:{proxy.port}")
    findings = looked(tmp_path, home, server.port)
    assert findings["network"].text.endswith("ms, by the proxy 127.0.0.1")
    assert findings["certificate"].ok
    assert proxy.request.startswith(f"CONNECT 127.0.0.1:{server.port} ".encode())
    assert base64.b64encode(b"clinic:s cret") in proxy.request


def test_hosts_of_no_proxy_are_reached_directly(tmp_path, home, monkeypatch):
    """N16: as the libraries below `site run` do."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    assert looked(tmp_path, home, Listener(home).port)["certificate"].ok


def test_a_proxy_that_refuses_is_named(tmp_path, home, monkeypatch):
    """N16: its refusal, not the server's."""
    proxy = Proxy(b"HTTP/1.1 407 Who are you\r\n\r\n")
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
    finding = looked(tmp_path, home, 9)["network"]
    assert not finding.ok
    assert f"by the proxy 127.0.0.1:{proxy.port}: Tunnel connection failed: 407" in finding.text
    joined = joined_at(tmp_path, home, 10)
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.2)  # the proxy answers once
    assert not handshake.rejection(joined)  # it may let the site through later


@pytest.mark.parametrize(
    ("findings", "why"),
    [
        ({"network": False}, ""),  # the server may come
        ({"network": True, "certificate": True, "clock": True}, ""),
        (
            {"network": True, "certificate": False, "clock": True},
            "",
        ),  # it expires soon, and lets sites in until then
        (
            {"network": True, "certificate": False, "admission": False},
            "",
        ),  # and whoever is not admitted may be yet
        ({"network": True, "certificate": False}, "certificate"),
        ({"network": True, "certificate": True, "clock": False}, "clock"),
        ({"network": True, "certificate": True, "admission": False}, ""),
        ({"network": True, "handshake": False}, ""),
    ],
)
def test_a_site_gives_up_only_where_waiting_cannot_help(findings, why, monkeypatch):
    each = [handshake.Finding(what, ok, what) for what, ok in findings.items()]
    monkeypatch.setattr(handshake, "network", lambda joined: each)
    assert handshake.rejection(SimpleNamespace()) == why  # type: ignore[arg-type]


@pytest.mark.parametrize(("behind_s", "ok"), [(5, True), (7, False), (0, True), (-300, True), (-310, False)])
def test_a_clock_is_judged_by_the_least_that_it_must_be_off(behind_s, ok, monkeypatch):
    """The server tells whole seconds: 5 may be 4 and a fraction, with which a site is let in."""
    there = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(seconds=behind_s)
    answer = SimpleNamespace(begin=lambda: None, getheader=lambda name: format_datetime(there, usegmt=True))
    monkeypatch.setattr(handshake, "HTTPResponse", lambda tls: answer)
    finding = handshake._clock(SimpleNamespace(sendall=lambda text: None), "here:8000")  # type: ignore[arg-type]
    assert (finding.what, finding.ok) == ("clock", ok), finding.text
