"""Addresses of IPv4 and IPv6, and the proxy through which a connection goes."""

from __future__ import annotations

import base64
import socket
import threading

import pytest

from unskew.errors import UsageError
from unskew.federation.addresses import (
    connect,
    default_bind,
    host_port,
    is_address,
    is_local,
    origin,
    parse_address,
    proxy_for,
)
from unskew.federation.certificates import read
from unskew.federation.tickets import Coordinator, Ticket


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fl.example.org", "fl.example.org", 8000),
        ("fl.example.org:9092", "fl.example.org", 9092),
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("[::1]:9092", "::1", 9092),
        ("[2001:db8::7]", "2001:db8::7", 8000),
        ("2001:db8::7", "2001:db8::7", 8000),
    ],
)
def test_a_host_is_read_in_every_form_in_which_people_write_it(text, host, port):
    assert parse_address(text, 8000) == (host, port)
    assert parse_address(host_port(host, port), 1) == (host, port)


NO_HOSTS = (
    "::1:99999 [::1 ::1]:9092 [::1]9092 [fl.example.org]:1 [127.0.0.1]:1 [fe80::1%eth0]:1 a:b:c h: h:0 h:65536"
    " h:+1 :9092 []:1 h/x"
)


@pytest.mark.parametrize("text", [*NO_HOSTS.split(), ""])
def test_what_is_no_host_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="E503 --host takes"):
        parse_address(text, 8000)


def test_only_this_machines_own_addresses_are_local():
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "2001:db8::1", "127.example.org")))
    assert not is_address("1.2.3")


def test_whoever_has_a_network_of_ipv6_is_counted_once():
    """Or each of its addresses could hold as many unproven connections as one of IPv4."""
    assert origin("2001:db8:1:2::3") == origin("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert origin("2001:db8:1:3::3") != origin("2001:db8:1:2::3")
    assert origin("::ffff:10.0.0.7") == origin("10.0.0.7") == "10.0.0.7"
    assert origin("::ffff:127.0.0.1") == "127.0.0.1"
    assert origin("::1") == "::1"


def test_a_federation_at_an_ipv6_address_has_tickets_and_a_certificate_for_it(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "[2001:db8::7]:9092", ["a"])
    ticket = Ticket.read(home.folder / "tickets/a.ticket")
    assert (ticket.host, ticket.port, ticket.place) == ("2001:db8::7", 9092, "[2001:db8::7]:9092")
    assert b"\x20\x01\x0d\xb8" + bytes(11) + b"\x07" in read(home.folder / "server.crt").public_bytes(
        fake_encoding()
    )
    assert default_bind(home.host) == "2001:db8::7"


def fake_encoding():
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.DER


NAMES = (
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


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


def test_there_is_none_without_a_name_or_for_hosts_that_are_left_out(monkeypatch):
    assert proxy_for("fl.example.org") is None
    monkeypatch.setenv("HTTP_PROXY", "proxy:1")  # which is for connections without TLS
    assert proxy_for("fl.example.org") is None
    monkeypatch.setenv("HTTPS_PROXY", "proxy:1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert proxy_for("fl.example.org") is None
    assert proxy_for("other.example.net")


def test_a_connection_through_a_proxy_is_asked_for_by_name_with_its_password(monkeypatch):
    proxy = Proxy()
    monkeypatch.setenv("HTTPS_PROXY", f"http://ward%40x:s%3Acret@127.0.0.1:{proxy.port}")
    with connect("fl.example.org", 8000, True, 5) as line:
        assert line.getpeername()[1] == proxy.port
    assert proxy.asked.startswith(b"CONNECT fl.example.org:8000 HTTP/1.")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"ward@x:s:cret") in proxy.asked


def test_a_federation_without_tls_goes_no_way_round(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with connect("127.0.0.1", port, False, 5) as line:
            assert line.getpeername() == ("127.0.0.1", port)


def test_what_a_proxy_says_names_the_proxy(monkeypatch):
    proxy = Proxy(b"HTTP/1.1 403 Not there\r\n\r\n")
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
    with pytest.raises(OSError, match=rf"by the proxy 127.0.0.1:{proxy.port}: .*403 Not there"):
        connect("fl.example.org", 8000, True, 5)
    monkeypatch.setenv("HTTPS_PROXY", "127.0.0.1:1")
    with pytest.raises(OSError, match=r"by the proxy 127.0.0.1:1: "):
        connect("fl.example.org", 8000, True, 5)
