"""The front as the process that `unskew serve` starts: what it says, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from unskew.federation.addresses import free_port
from unskew.federation.front.access import parse_refusal
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

pytestmark = [pytest.mark.flower, pytest.mark.own_process]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("front")
    home = Coordinator.make(root / "fed", "lung", f"127.0.0.1:{free_port()}", ["a"])
    joined = SiteFolder.make(root / "a", Ticket.read(home.ticket_file("a")))
    home.admit("a", joined.key.public)
    return home


@contextlib.contextmanager
def front(home, folder) -> Iterator[subprocess.Popen[str]]:
    """The process, once it listens; its output is in `said` of the folder."""
    words = [sys.executable, "-P", "-m", "unskew.federation.front", str(home.folder), "127.0.0.1"]
    env = {
        name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"
    }  # as a service has it
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        until = time.monotonic() + 60
        while "listening" not in lines(folder) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def lines(folder) -> str:
    return (folder / "said").read_text()


def site(home) -> ssl.SSLSocket:
    context = SiteFolder.open(home.folder.parent / "a").tls()
    assert context
    return context.wrap_socket(
        socket.create_connection(("127.0.0.1", home.port), 5), server_hostname="127.0.0.1"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order_and_counts_everybody_whom_it_refused(home, tmp_path, number):
    with front(home, tmp_path) as process:
        assert lines(tmp_path) == f"listening at 127.0.0.1:{home.port}\n"
        for _ in range(5):  # of which a line is due for the first alone
            with socket.create_connection(("127.0.0.1", home.port), 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
                with contextlib.suppress(OSError):
                    assert not stranger.recv(100)
        process.send_signal(number)
        assert process.wait(20) == 0
        said = lines(tmp_path).splitlines()[1:]
        facts = [parse_refusal(line) for line in said]
        assert sum(int(fact["times"]) for fact in facts if fact) == 5, said
        assert all(
            fact and fact["who"] == "127.0.0.1" and fact["why"] == "does not speak TLS" for fact in facts
        ), said


def test_what_a_site_sends_writes_no_lines_but_those_of_refusals(home, tmp_path):
    """Its log would else grow as fast as a site likes."""
    with front(home, tmp_path) as process:
        for _ in range(4):
            with site(home) as line:
                line.sendall(b"no HTTP at all\r\n\r\n")
                assert b" 400 " in line.recv(1000)
        with site(home) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b" 204 " in line.recv(1000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    said = lines(tmp_path).splitlines()[1:]
    assert said
    assert all(parse_refusal(line) for line in said), said


def test_an_address_at_which_somebody_listens_is_told_in_a_sentence(home, tmp_path):
    with socket.create_server(("127.0.0.1", home.port)), front(home, tmp_path) as process:
        assert process.wait(20) == 1
    (said,) = lines(tmp_path).splitlines()
    taken = os.strerror(errno.EADDRINUSE)
    assert said.startswith(f"E507 the server cannot listen at 127.0.0.1:{home.port}: {taken}")
