"""`unskew serve`: what it tells, which sites it registers, and how it ends."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from types import SimpleNamespace

from tests.ports import free_port
from unskew.errors import UsageError
from unskew.federation import programs
from unskew.federation.coordinator import server as coordinator_server
from unskew.federation.coordinator import superlink
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.tickets import Coordinator

pytestmark = pytest.mark.flower


@pytest.fixture
def two_sites(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", f"127.0.0.1:{free_port()}", ["b", "a"])


def test_the_server_prints_whom_the_front_refused(two_sites):
    said: list[str] = []
    server = coordinator_server.Server(two_sites, say=said.append)
    for written in ("refused 198.51.100.7: offers no certificate", "listening"):
        server.front.seen(written)
    assert said == ["refused 198.51.100.7: offers no certificate"]


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
