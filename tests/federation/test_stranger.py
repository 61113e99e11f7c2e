"""A stranger before a real server: everything that can be tried without an admitted key, and what it leaves
behind.

The stranger attacks from another address of loopback, so that a site's own connections are not slowed with
theirs.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import Loopback, below, running
from tests.federation.wild import run_of_a_stranger
from unskew.federation import journal
from unskew.federation.addresses import socket_address
from unskew.federation.front.access import parse_refusal
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

pytestmark = [pytest.mark.slow, pytest.mark.flower]

STRANGER = "127.0.0.6"
"""The first 9 characters of the addresses that attacks come from: another one for each kind, since each is
rationed."""
REASONS = {
    "plain ": "does not speak TLS",
    "no certificate ": "offers no certificate",
    "another authority ": "its certificate is not of an admitted key",
    "revoked ": "its certificate is not of an admitted key",
    "never admitted ": "its certificate is not of an admitted key",
    "pouring": "does not speak TLS",
    "dripping": "proved no key within 4 s",
}
BIG = 400 << 20
AT_ONCE_S, MOST_BYTES = 5.0, 20 << 20


@dataclass
class Attacks:
    """What each attempt took, and what the server's files and memory were before and after all of them."""

    federation: Loopback
    seconds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    let_in: list[str] = field(default_factory=list)
    files: tuple[set[str], set[str]] = (set(), set())
    memory: tuple[int, int] = (0, 0)
    paths: list[str] = field(default_factory=list)
    run: str = ""
    """What `flwr run` says of an app that the stranger hands in."""
    kinds: dict[str, str] = field(default_factory=dict)
    """The address that each kind of attack comes from."""

    @property
    def port(self) -> int:
        return self.federation.home.port

    def attempt(self, name: str, attack: Callable[[socket.socket], bool | None]) -> None:
        """Connect, attack, and wait to be thrown out. attack: returns True if it got an answer."""
        began, kind = time.monotonic(), name.split("/")[0]
        self.kinds.setdefault(kind, f"{STRANGER}{len(self.kinds)}")
        with (
            contextlib.suppress(OSError),
            socket.create_connection(
                ("127.0.0.1", self.port), timeout=9, source_address=(self.kinds[kind], 0)
            ) as line,
        ):
            try:
                if attack(line):
                    self.let_in.append(name)
            finally:
                self.seconds[name] = time.monotonic() - began


def asking(method: str, path: str, context: ssl.SSLContext | None) -> Callable[[socket.socket], bool]:
    """A request, in plain text unless there is a context; True if it is answered."""

    def attack(line: socket.socket) -> bool:
        end = context.wrap_socket(line, server_hostname="127.0.0.1") if context else line
        end.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        return end.recv(1000).startswith(b"HTTP")

    return attack


def pouring(
    context: ssl.SSLContext | None, sent: dict[str, int], name: str
) -> Callable[[socket.socket], bool]:
    """A body of 400 MB; notes how much of it was taken."""

    def attack(line: socket.socket) -> bool:
        end = context.wrap_socket(line, server_hostname="127.0.0.1") if context else line
        sent[name], piece = 0, bytes(1 << 20)
        end.sendall(
            f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: h\r\nContent-Length: {BIG}\r\n\r\n".encode()
        )
        while sent[name] < BIG:
            end.sendall(piece)
            sent[name] += len(piece)
        return True

    return attack


def dripping(line: socket.socket) -> bool:
    """A handshake that never ends: a byte now and then."""
    hello = b"\x16\x03\x01\x02\x00" + bytes(512)
    for k in range(100):
        line.sendall(hello[k : k + 1])
        line.settimeout(0.1)
        try:
            return bool(line.recv(1))
        except TimeoutError:
            continue
    return True


def contexts(federation: Loopback) -> dict[str, ssl.SSLContext]:
    """What a stranger may show: nothing, a certificate of another authority, a site's that has been
    revoked."""
    home = federation.home
    bare = ssl.create_default_context(cadata=(home.folder / "ca.crt").read_text())
    Coordinator.make(federation.root / "elsewhere", "elsewhere", "127.0.0.1:9", ["c"])
    elsewhere = ssl.create_default_context(cadata=(home.folder / "ca.crt").read_text())
    elsewhere.load_cert_chain(
        federation.root / "elsewhere/server.crt", federation.root / "elsewhere/server.key"
    )
    joined = SiteFolder.make(federation.root / "site-unknown", Ticket.read(home.ticket_file("b")))
    revoked, unknown = SiteFolder.open(federation.root / "site-c").tls(), joined.tls()
    assert revoked is not None
    assert unknown is not None
    return {
        "no certificate": bare,
        "another authority": elsewhere,
        "revoked": revoked,
        "never admitted": unknown,
    }


@pytest.fixture(scope="module")
def attacks(tmp_path_factory) -> Attacks:
    with running(tmp_path_factory.mktemp("lung"), sites=()) as federation:
        attacks = Attacks(federation)
        home = federation.home
        with httpx.Client(transport=httpx.HTTPTransport(uds=socket_address(home.superlink))) as client:
            listed = client.get("http://superlink/openapi.json").json()["paths"]
        attacks.paths = ["/docs", "/openapi.json", "/redoc", *listed]
        federation.do("federation", "revoke", "lung", "c")
        shown = contexts(federation)
        time.sleep(1)
        attacks.run = run_of_a_stranger(federation, f"127.0.0.1:{attacks.port}")
        before = files(federation.root), memory(federation)
        for path in attacks.paths:
            attacks.attempt(f"plain {path}", asking("POST", path, None))
        for name, context in shown.items():
            for path in ("/docs", "/v1/fleet/activate-node", "/v1/control/start-run"):
                attacks.attempt(f"{name} {path}", asking("GET", path, context))
            attacks.attempt(f"{name} /400 MB", pouring(context, attacks.sent, f"{name} 400 MB"))
        attacks.attempt("pouring", pouring(None, attacks.sent, "plain 400 MB"))
        attacks.attempt("dripping", dripping)
        idle = [
            socket.create_connection(("127.0.0.1", attacks.port), source_address=(f"127.0.0.{70 + k % 8}", 0))
            for k in range(100)
        ]
        time.sleep(2)
        held = memory(federation)
        for line in idle:
            line.settimeout(6)
            with contextlib.suppress(OSError):
                attacks.let_in += ["silence"] * bool(line.recv(1))
            line.close()
        time.sleep(1)
        attacks.files = before[0], files(federation.root)
        attacks.memory = before[1], max(held, memory(federation))
        federation.do("site", "check", "--data", "a.npz", "--folder", "site-a")
        yield attacks


def files(root: Path) -> set[str]:
    """All files but those that grow by design: logs and the federation's journal."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.suffix not in (".log", ".jsonl", ".lock")
    }


def memory(federation: Loopback) -> int:
    """Bytes that the server's processes hold."""
    pages = 0
    for pid in (federation.running["serve"].pid, *below(federation.running["serve"].pid)):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_every_attempt_of_a_stranger_is_refused_at_once(attacks):
    assert not attacks.let_in
    assert not json.loads(attacks.run)["success"]
    assert not (attacks.federation.root / "was-here").exists()
    assert len(attacks.paths) > 70
    assert {name: s for name, s in attacks.seconds.items() if s > AT_ONCE_S} == {}


def test_nothing_that_a_stranger_sends_is_kept(attacks):
    assert len(attacks.sent) >= 1
    assert max(attacks.sent.values()) < 32 << 20  # what the kernel's own buffers take
    assert attacks.memory[1] - attacks.memory[0] < MOST_BYTES
    assert attacks.files[1] - attacks.files[0] == set()


def test_each_attempt_is_in_the_log_and_in_the_journal(attacks):
    federation = attacks.federation
    federation.stop("serve")  # lines that were put off are written now
    lines = federation.log("federations/lung/flower/front").splitlines()
    counted, reasons = Counter(), defaultdict(set)
    for fact in filter(None, map(parse_refusal, lines)):
        counted[fact["who"]] += fact["times"]
        reasons[fact["who"]].add(fact["why"])
    assert sum(n for who, n in counted.items() if who.startswith(STRANGER)) == len(attacks.seconds)
    assert counted["127.0.0.1"] >= 1  # `flwr run`
    assert sum(counted.values()) == len(attacks.seconds) + 100 + counted["127.0.0.1"]
    for kind, reason in REASONS.items():
        assert reason in reasons[attacks.kinds[kind]], kind
    assert len(lines) < 60
    home = federation.home
    path = home.folder / journal.JOURNAL_FILE
    verdict = journal.verify(path, home.key.public)
    assert not verdict.wrong
    noted = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(line["times"] for line in noted if line["what"] == "refused") == sum(counted.values())
    assert [line["site"] for line in noted if line["what"] == "revoked"] == ["c"]
    who = attacks.kinds["no certificate "]
    assert f"refused {who}: offers no certificate" in federation.log("serve")
    assert "signed by" in federation.do("federation", "audit", "lung")
