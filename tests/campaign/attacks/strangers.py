"""Strangers before the server: whoever has no admitted key, and whoever had one, while a study goes on.

Each attacks from an address of loopback of its own, as the front rations addresses.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx

from tests.campaign.cases import Case, check, check_within
from tests.campaign.ground import Ground, Programs, check_unharmed
from tests.campaign.ongoing import Ongoing, runs
from unskew.federation import flower_patches
from unskew.federation.addresses import socket_address
from unskew.federation.front.proxy import CALLS
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator

FAMILY = "strangers"
ROUNDS = 40
AT_ONCE_S, MOST_BYTES, MOST_TAKEN = 5.0, 20 << 20, 32 << 20
"""How soon a connection is closed, how much memory the server, and how much of the disk messages, may take
during an attack, and how much of a body the kernel's buffers take before anybody has read it."""
Attack = Callable[[socket.socket], bool | None]
Shown = dict[str, ssl.SSLContext | None]
"""What a stranger may show: nothing at all, no certificate, or one that is not admitted."""
BIG = 400 << 20


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


def cases(ground: Ground, rng: random.Random) -> Iterator[Case]:
    """Every attack by every kind of stranger, in an order of its own."""
    shown: Shown = {}
    yield Case(FAMILY, "strangers arrive", lambda: arrive(ground, shown), 120, counts=False)
    made: list[tuple[str, Callable[[Ongoing], str]]] = []
    made.append(("raw HTTP on every path", lambda run: every_path(run, shown)))
    for who in shown:
        made.append((f"400 MB, {who}", lambda run, who=who: pour(run, shown[who])))
        made.append((f"the calls of a site, {who}", lambda run, who=who: call(run, shown[who])))
    made.append(("slowloris: a handshake of a byte now and then", lambda run: slowly(run)))
    made.append(("100 connections that stay silent", silent))
    made.append(("random bytes", lambda run: noise(run, rng)))
    rng.shuffle(made)
    yield from runs(ground, FAMILY, ROUNDS, (partial(_case, name, work) for name, work in made))


def arrive(ground: Ground, shown: Shown) -> str:
    """Make what strangers show. A fourth site is added, joins, is admitted, and revoked."""
    home = ground.home
    other = Coordinator.make(ground.root / "elsewhere", "elsewhere", "127.0.0.1:9", ["c"])
    foreign = bare(ground)
    foreign.load_cert_chain(other.folder / "server.crt", other.folder / "server.key")
    ground.do("federation", "add", "lung", "d")
    ground.do("join", str(home.ticket_file("d")), "--folder", "site-d")
    unknown = SiteFolder.make(ground.root / "site-unknown", home.ticket("c"))
    ground.do("federation", "admit", "lung", "--compared", "site-d/d.pub")
    ground.do("federation", "revoke", "lung", "d")
    shown |= {"in plain text": None, "without a certificate": bare(ground)}
    shown |= {
        "with another authority's certificate": foreign,
        "with a key that was never admitted": unknown.tls(),
    }
    shown |= {"with a revoked certificate": SiteFolder.open(ground.root / "site-d").tls()}
    return f"{len(shown)} kinds"


def bare(ground: Ground) -> ssl.SSLContext:
    """Trusts the server, and shows nothing."""
    return ssl.create_default_context(cadata=(ground.home.folder / "ca.crt").read_text())


def _case(name: str, work: Callable[[Ongoing], str], run: Ongoing) -> Case:
    return Case(FAMILY, name, partial(_guarded, work, run), 150)


def _guarded(work: Callable[[Ongoing], str], run: Ongoing) -> str:
    """The server is as before, the run goes on, and nothing was written but logs and journals."""
    ground = run.ground
    programs, memory, files = ground.programs(), ground.memory(("front", "superlink")), files_of(ground)
    seen = work(run)
    check_unharmed(
        ground, Programs({label: programs.pids[label] for label in ("serve", "front", "superlink")})
    )
    grown = ground.memory(("front", "superlink")) - memory
    check(grown < MOST_BYTES, f"the server holds {grown / 2**20:.0f} MB more")
    check(files_of(ground) <= files, f"written: {sorted(files_of(ground) - files)}")
    check(
        pieces_of(ground) < MOST_BYTES,
        f"pieces of messages take {pieces_of(ground) / 2**20:.0f} MB of the disk",
    )
    check(not (ground.root / "was-here").exists(), "an app of a stranger was run")
    run.goes_on()
    return seen


def files_of(ground: Ground) -> set[str]:
    """Files that no stranger may make: all but logs, journals, databases, those of runs and sites, and the
    pieces of the messages that sites and coordinator exchange meanwhile."""
    paths = [path for path in ground.home.folder.rglob("*") if path.parent != _pieces(ground)]
    names = {str(path.relative_to(ground.root)) for path in paths}
    return {
        name
        for name in names
        if not name.endswith((".log", ".jsonl", ".lock", ".part")) and ".db" not in name
    }


def pieces_of(ground: Ground) -> int:
    """Bytes of all pieces of messages that lie in files."""
    total = 0
    for path in _pieces(ground).glob("*"):
        with contextlib.suppress(FileNotFoundError):  # its message was answered meanwhile
            total += path.stat().st_size
    return total


def _pieces(ground: Ground) -> Path:
    return ground.home.folder / "flower" / flower_patches.PIECE_FOLDER


def attack(ground: Ground, source: int, what: Attack) -> tuple[bool, float]:
    """Connect from an address of its own and attack. Returns whether there was an answer, and the seconds
    until the end."""
    began, answered = time.monotonic(), False
    with contextlib.suppress(OSError):
        here = (f"127.0.0.{60 + source}", 0)
        with socket.create_connection(
            ("127.0.0.1", ground.home.port), timeout=9, source_address=here
        ) as line:
            answered = bool(what(line))
    return answered, time.monotonic() - began


def refused(ground: Ground, attacks: dict[str, Attack]) -> float:
    """Raises Wrong unless every attack ends at once and without an answer. Returns the longest, in
    seconds."""
    longest = 0.0
    for source, (name, what) in enumerate(attacks.items()):
        answered, seconds = attack(ground, source % 6, what)
        check(not answered, f"{name} was answered")
        check_within(AT_ONCE_S, seconds, name)
        longest = max(longest, seconds)
    return longest


def every_path(run: Ongoing, shown: Shown) -> str:
    """All paths of Flower's server, which the coordinator's own machine can list."""
    home = run.ground.home
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket_address(home.superlink))) as client:
        listed = client.get("http://superlink/openapi.json").json()["paths"]
    paths = ["/docs", "/openapi.json", "/redoc", *listed]
    attacks = {
        f"{who} {p}": asking("POST", p, shown[who])
        for p in paths
        for who in ("in plain text", "with a revoked certificate")
    }
    check(len(attacks) > 140, f"only {len(attacks)} paths are listed")
    return f"{len(attacks)} requests, none answered, the longest {refused(run.ground, attacks):.1f} s"


def pour(run: Ongoing, context: ssl.SSLContext | None) -> str:
    sent = {"body": 0}
    took_s = refused(run.ground, {"400 MB": pouring(context, sent, "body")})
    check(sent["body"] < MOST_TAKEN, f"{sent['body'] >> 20} MB were taken")
    return f"cut off after {took_s:.1f} s and {sent['body'] >> 20} MB"


def call(run: Ongoing, context: ssl.SSLContext | None) -> str:
    attacks = {path: asking("POST", path, context) for path in (*CALLS, "/v1/control/start-run", "/")}
    return f"{len(attacks)} calls, none answered, the longest {refused(run.ground, attacks):.1f} s"


def slowly(run: Ongoing) -> str:
    return f"cut off after {refused(run.ground, {'a slow handshake': dripping}):.1f} s"


def silent(run: Ongoing) -> str:
    """Many at once, from a few addresses; sites are served meanwhile."""
    where, began = ("127.0.0.1", run.ground.home.port), time.monotonic()
    with contextlib.ExitStack() as lines:
        open_ = []
        for k in range(100):
            with contextlib.suppress(OSError):
                line = socket.create_connection(where, timeout=9, source_address=(f"127.0.0.{90 + k % 8}", 0))
                open_.append(lines.enter_context(line))
        run.goes_on()
        for line in open_:
            with contextlib.suppress(OSError):
                check(not line.recv(1), "silence was answered")
    took_s = time.monotonic() - began
    return f"{len(open_)} connections, all closed after {took_s:.0f} s; rounds went on meanwhile"


def noise(run: Ongoing, rng: random.Random) -> str:
    pieces = [rng.randbytes(rng.randrange(1, 4000)) for _ in range(24)]

    def sending(piece: bytes) -> Attack:
        def what(line: socket.socket) -> bool:
            line.sendall(piece)
            return line.recv(1000).startswith(b"HTTP/1.1 2")

        return what

    attacks = {f"noise {k}": sending(piece) for k, piece in enumerate(pieces)}
    return f"{len(attacks)} attempts, the longest {refused(run.ground, attacks):.1f} s"
