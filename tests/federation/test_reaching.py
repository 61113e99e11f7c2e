"""Which way a connection to the server goes: direct, or through the proxy that the environment names."""

from __future__ import annotations

import base64
import socket
import threading
import time

import pytest

from unskew.federation.addresses import connect, proxy_for

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


def _gone_after(line: socket.socket, seconds: float) -> None:
    time.sleep(seconds)
    line.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("proxy:3128", "proxy", 3128), ("http://proxy:3128/", "proxy", 3128), ("http://u:p@[::1]:9", "::1", 9)],
)
def test_a_proxy_may_be_named_with_or_without_http(monkeypatch, text, host, port):
    monkeypatch.setenv("HTTPS_PROXY", text)
    proxy = proxy_for("fl.example.org")
    assert proxy
    assert (proxy.hostname, proxy.port) == (host, port)


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


def test_who_has_no_password_sends_none(monkeypatch):
    proxy = Proxy()
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
    connect("fl.example.org", 8000, True, 5).close()
    assert b"Authorization" not in proxy.asked


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


def test_a_proxy_that_says_nothing_is_not_waited_for_without_end(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{silent.getsockname()[1]}")
        threading.Thread(target=lambda: _gone_after(silent.accept()[0], 3), daemon=True).start()
        with pytest.raises(OSError, match=r"by the proxy .*timed out"):
            connect("fl.example.org", 8000, True, 0.2)
