"""`unskew serve`: what it tells, which sites it registers, and how it ends."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json
from types import SimpleNamespace

from tests.ports import free_port
from unskew.errors import UsageError
from unskew.federation import journal, programs
from unskew.federation.coordinator import server as coordinator_server
from unskew.federation.coordinator import superlink
from unskew.federation.front import access
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.tickets import Coordinator

pytestmark = pytest.mark.flower


@pytest.fixture
def two_sites(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", f"127.0.0.1:{free_port()}", ["b", "a"])


def test_the_server_tells_whom_the_front_refused(two_sites):
    line = f'{access.MARK}{{"who": "198.51.100.7", "why": "offers no certificate", "times": 1}}'
    (two_sites.folder / "flower" / "front.log").write_text(f"{line}\n")  # of an earlier server
    said: list[str] = []
    server = coordinator_server.Server(two_sites, say=said.append)
    server.report_refusals()
    for written in (line, "listening", line[:40], line.replace('"times": 1', '"times": 7')):
        server.front.seen(written)
    server.report_refusals()
    server.report_refusals()
    who = "refused 198.51.100.7: offers no certificate"
    assert said == [who, f"{who} (7 times)"]
    noted = [json.loads(text) for text in (two_sites.folder / journal.JOURNAL_FILE).read_text().splitlines()]
    assert [(n["what"], n["who"], n["times"]) for n in noted] == [
        ("refused", "198.51.100.7", t) for t in (1, 7)
    ]
    assert not journal.verify(two_sites.folder / journal.JOURNAL_FILE, two_sites.key.public).wrong


def test_flower_tells_nobody_of_a_federation_whatever_the_shell_says(tmp_path, monkeypatch):
    for name in programs.FLOWER_SWITCHES:
        monkeypatch.setenv(name, "asked for")
    env = programs.environment(tmp_path / "flower", FLWR_LOG="1")
    assert {name: env[name] for name in programs.FLOWER_SWITCHES} == programs.FLOWER_SWITCHES
    assert (env["FLWR_HOME"], env["FLWR_LOG"]) == (str(tmp_path / "flower"), "1")


def tended(home, monkeypatch) -> coordinator_server.Server:
    """A server whose programs are not started."""
    server = coordinator_server.Server(home, say=lambda _: None)
    for program in (server.front, server.program):
        monkeypatch.setattr(program, "tend", lambda say: None)
    monkeypatch.setattr(home.__class__, "admitted", lambda self: {})
    return server


def test_the_nodes_of_flowers_server_become_those_of_the_admitted_keys(two_sites, monkeypatch):
    """Also if somebody has removed one there, or added one."""
    server, made, now = tended(two_sites, monkeypatch), [], 0.0
    monkeypatch.setattr(coordinator_server, "time", SimpleNamespace(monotonic=lambda: now))
    keys = {site: PrivateKey.make().public for site in "ab"}
    a, b = (superlink.flower_key(key) for key in keys.values())
    nodes = {a: 1, b"a stranger's": 2, b"a revoked site's": 3}
    monkeypatch.setattr(two_sites.__class__, "admitted", lambda self: keys)
    monkeypatch.setattr(server._link, "nodes", lambda: dict(nodes))
    monkeypatch.setattr(server._link, "register", lambda site, key: made.append((site, key)))
    monkeypatch.setattr(server._link, "unregister", made.append)
    server.tend()
    assert sorted(made[:2]) == [2, 3]
    assert made[2:] == [("b", keys["b"])]
    made.clear()
    nodes = {b: 4}  # one was removed behind the server's back
    for now in (1.0, coordinator_server.RECONCILE_S + 1):  # noqa: B007  the clock reads it
        server.tend()
    assert made == [("a", keys["a"])]


def test_a_program_that_keeps_ending_by_itself_is_given_up_but_not_one_that_is_killed(two_sites, monkeypatch):
    server = coordinator_server.Server(two_sites, say=lambda _: None)
    codes = iter([-9] * 5 + [1] * 2 + [-9, 1])
    monkeypatch.setattr(server.front, "tend", lambda say: next(codes))
    monkeypatch.setattr(server.program, "tend", lambda say: None)
    monkeypatch.setattr(two_sites.__class__, "admitted", lambda self: {})
    for _ in range(8):
        server.tend()
    with pytest.raises(UsageError, match="E507 the front does not stay up"):
        server.tend()
