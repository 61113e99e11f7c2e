"""What a site checks before it takes part: certificates, clocks, data."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation.site import handshake, site_checks
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
        self.door = socket.create_server(("127.0.0.1", 0))
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


def test_our_certificates_stand_strict_checks(home):
    """Which Python's own ssl makes from 3.13 on."""
    context = ssl.create_default_context(cafile=str(home.folder / "ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", Listener(home).port)) as line,
        context.wrap_socket(line, server_hostname="127.0.0.1") as tls,
    ):
        assert tls.getpeercert()


def looked(tmp_path: Path, made: Coordinator, port: int) -> dict[str, handshake.Finding]:
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
    assert good["data"].text.startswith(
        "16 training samples, 4 test samples, each [1, 8, 8]; 2 classes (none of perhaps)"
    )
    stranger = Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"])
    assert "rejected" in looked(tmp_path, home, Listener(stranger).port)["certificate"].text
    assert "does not speak TLS" in looked(tmp_path, home, Listener(None).port)["certificate"].text
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert "cannot be reached" in looked(tmp_path, home, port)["network"].text


def joined_at(tmp_path: Path, made: Coordinator, port: int, **changes) -> SiteFolder:
    ticket = Ticket(**{**made.ticket("a").__dict__, "port": port, **changes}).signed(made.key)
    return SiteFolder.make(tmp_path / f"at{port}", ticket)


def test_a_folder_in_which_nothing_can_be_kept_is_found_before_the_site_runs(tmp_path, home, monkeypatch):
    """A check passed on a disk that was read-only, and `site run` then ended."""
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((20, 3)), y=np.arange(20) % 2)
    joined = SiteFolder.make(tmp_path / "site", Ticket.read(home.ticket_file("a")))
    wrong = {
        f.what
        for f in site_checks.check_site(joined.folder, str(tmp_path / "a.npz"), ["no", "yes"])
        if not f.ok
    }
    assert "folder" not in wrong
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (joined.folder, os.W_OK))
    (text,) = [
        f.text
        for f in site_checks.check_site(joined.folder, str(tmp_path / "a.npz"), [])
        if f.what == "folder"
    ]
    assert text.startswith(f"nothing can be written to {joined.folder}, where the site keeps what has left")


def test_a_site_does_not_knock_where_it_will_never_be_let_in(tmp_path, home):
    """The reason within 5 s; a server that is not there yet, or whose certificate ends soon, is no such
    reason."""
    stranger = Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"])
    began = time.monotonic()
    assert "certificate is rejected" in handshake.rejection(
        joined_at(tmp_path, home, Listener(stranger).port)
    )
    assert "does not speak TLS" in handshake.rejection(joined_at(tmp_path, home, Listener(None).port))
    assert "the server speaks TLS, but" in handshake.rejection(
        joined_at(tmp_path, home, Listener(home).port, authority=None)
    )
    assert time.monotonic() - began < 5
    assert not handshake.rejection(joined_at(tmp_path, home, Listener(home).port))
    assert not handshake.rejection(joined_at(tmp_path, home, Listener(None).port, authority=None))
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert not handshake.rejection(joined_at(tmp_path, home, port))
    listener = Listener(stranger)
    made = joined_at(tmp_path, home, listener.port)
    done = call("site", "run", "--data", "d.npz", "--folder", str(made.folder), cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E503")


def test_a_proxy_that_accepts_while_the_server_is_down_is_no_reason_to_give_up(tmp_path, home):
    """N12: `site run` ended with E503."""
    assert not handshake.rejection(joined_at(tmp_path, home, Listener(None, says=b"").port))
    hung_up = looked(tmp_path, home, Listener(None, says=b"").port)["handshake"]
    assert not hung_up.ok
    assert "Does a proxy stand before a server that is down?" in hung_up.text


def test_another_host_than_the_certificate_names_is_refused(tmp_path):
    made = Coordinator.make(tmp_path / "fed2", "far", "far.example", ["a"])
    listener = Listener(made)
    ticket = Ticket(**{**made.ticket("a").__dict__, "port": listener.port, "host": "127.0.0.2"}).signed(
        made.key
    )
    joined = SiteFolder.make(tmp_path / "s", ticket)
    line = socket.create_connection(("127.0.0.1", listener.port))
    (finding,) = handshake.certificate_of(joined, line)
    assert not finding.ok
    assert "IP address mismatch" in finding.text
