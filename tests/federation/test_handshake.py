"""What a site checks before it takes part: certificates, clocks, data."""

from __future__ import annotations

import base64
import datetime as dt
import socket
import ssl
import threading
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.calling import call
from unskew.federation import certificates
from unskew.federation.site import site_folder as site_checks
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["b", "a"])


class Listener:
    """Something that speaks TLS with a given certificate, once; without one it sends some bytes and hangs up.

    ahead_s: how far its clock is ahead.
    """

    def __init__(
        self,
        home: Coordinator | None,
        ahead_s: float = 0.0,
        says: bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ):
        self.home, self.ahead_s, self.says = home, ahead_s, says
        self.door = socket.create_server(("", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        line, _ = self.door.accept()
        if self.home is None:
            line.sendall(self.says)
            line.recv(1000)
            line.close()
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.home.folder / "server.crt", self.home.folder / "server.key")
        try:
            with context.wrap_socket(line, server_side=True) as tls:
                tls.recv(1000)
                date = formatdate(time.time() + self.ahead_s, usegmt=True)
                tls.sendall(f"HTTP/1.1 404 No\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
        except OSError:
            pass


def looked(tmp_path: Path, made: Coordinator, port: int) -> dict[str, site_checks.Finding]:
    ticket = made.ticket("a")
    joined = SiteFolder.make(
        tmp_path / f"site{port}", Ticket(**{**ticket.__dict__, "port": port}).signed(made.key)
    )
    np.savez(tmp_path / "d.npz", x=np.random.rand(20, 1, 8, 8).astype(np.float32), y=np.arange(20) % 2)
    return {
        f.what: f
        for f in site_checks.check_site(joined.folder, str(tmp_path / "d.npz"), ["no", "yes", "perhaps"])
    }


def test_the_doctor_tells_what_is_wrong(tmp_path, home):
    good = looked(tmp_path, home, Listener(home).port)
    assert good["certificate"].ok
    assert good["clock"].ok
    assert "16 for training, 4 for testing" in good["data"].text
    stranger = Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"])
    assert "rejected" in looked(tmp_path, home, Listener(stranger).port)["certificate"].text
    assert "does not speak TLS" in looked(tmp_path, home, Listener(None).port)["certificate"].text
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert "cannot be reached" in looked(tmp_path, home, port)["network"].text


def joined_at(tmp_path: Path, made: Coordinator, port: int, **changes) -> SiteFolder:
    ticket = Ticket(**{**made.ticket("a").__dict__, "port": port, **changes}).signed(made.key)
    return SiteFolder.make(tmp_path / f"at{port}", ticket)


def test_a_site_does_not_knock_where_it_will_never_be_let_in(tmp_path, home):
    """The reason within 5 s; a server that is not there yet is no such reason."""
    stranger = Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"])
    began = time.monotonic()
    assert "certificate is rejected" in site_checks.rejection(
        joined_at(tmp_path, home, Listener(stranger).port)
    )
    assert "does not speak TLS" in site_checks.rejection(joined_at(tmp_path, home, Listener(None).port))
    assert time.monotonic() - began < 5
    assert not site_checks.rejection(joined_at(tmp_path, home, Listener(home).port))
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert not site_checks.rejection(joined_at(tmp_path, home, port))


@pytest.mark.flower
def test_a_site_of_another_federation_ends_at_once(tmp_path, home):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    listener = Listener(Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"]))
    made = joined_at(tmp_path, home, listener.port)
    done = call("site", "run", "--data", "d.npz", "--folder", str(made.folder), cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E503")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.flower
def test_flower_takes_clocks_as_far_off_as_we_say():
    flower = pytest.importorskip(
        "flwr.common.constant", reason="Flower is not installed: pip install 'unskew[flower]'"
    )
    assert site_checks.MOST_AHEAD_S == flower.SYSTEM_TIME_TOLERANCE
    assert site_checks.MOST_BEHIND_S == flower.TIMESTAMP_TOLERANCE + flower.SYSTEM_TIME_TOLERANCE


@pytest.mark.parametrize(("server_s", "ok"), [(0, True), (3, True), (-30, False), (200, True), (400, False)])
def test_the_check_measures_the_servers_clock(tmp_path, home, server_s, ok):
    finding = looked(tmp_path, home, Listener(home, server_s).port)["clock"]
    assert finding.ok is ok, finding.text


@pytest.mark.parametrize(("years", "said"), [(10, "not yet valid"), (-11, "has expired")])
def test_a_certificate_out_of_its_time_makes_the_clock_suspect(tmp_path, monkeypatch, years, said):
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


def test_another_host_than_the_certificate_names_is_refused(tmp_path):
    made = Coordinator.make(tmp_path / "fed2", "far", "far.example", ["a"])
    joined = joined_at(tmp_path, made, Listener(made).port, host="127.0.0.2")
    assert "IP address mismatch" in site_checks.rejection(joined)


class Proxy:
    """Answers one CONNECT with these lines. asked: what it was asked."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n"):
        self.asked, self.answer = b"", answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        line, _ = self.listener.accept()
        while b"\r\n\r\n" not in self.asked:
            self.asked += line.recv(4096)
        line.sendall(self.answer)
        self.line = line


def test_a_proxy_is_asked_by_name_with_its_password_and_named_where_it_refuses(tmp_path, home, monkeypatch):
    proxy = Proxy(b"HTTP/1.1 403 Not there\r\n\r\n")
    monkeypatch.setenv("HTTPS_PROXY", f"http://ward%40x:s%3Acret@127.0.0.1:{proxy.port}")
    (finding,) = site_checks.network(joined_at(tmp_path, home, 9999, host="fl.example.org"))
    assert proxy.asked.startswith(b"CONNECT fl.example.org:9999 HTTP/1.")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"ward@x:s:cret") in proxy.asked
    assert not finding.ok
    assert "403 Not there" in finding.text
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert all(f.ok for f in site_checks.network(joined_at(tmp_path, home, Listener(home).port)))
