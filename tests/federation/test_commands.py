"""The commands around a federation, without a network."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.test_metrics import parsed
from unskew.cli.remote_run import seconds
from unskew.config import dump
from unskew.errors import Paused, UsageError
from unskew.federation import journal, programs, prometheus
from unskew.federation.coordinator import server as coordinator_server
from unskew.federation.coordinator import superlink
from unskew.federation.coordinator.server import ServerMetrics
from unskew.federation.front import access
from unskew.federation.protocol import study_rules
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket
from unskew.records.run_lock import RunLock
from unskew.runs import conformance

pytestmark = pytest.mark.flower  # which pins an older Typer


def test_help_says_what_arguments_are():
    """Typer as Flower pins it loses that with Click 8.5, so the extra asks for an older Click."""
    told = " ".join(call("resume", "--help").out.replace("│", " ").split())
    assert "the folder of a run or of a comparison [required]" in told, "pip install 'click<8.5'"


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["b", "a"])


def test_the_server_tells_whom_the_front_refused(home):
    line = f'{access.MARK}{{"who": "198.51.100.7", "why": "offers no certificate", "times": 1}}'
    (home.folder / "flower" / "front.log").write_text(f"{line}\n")  # of an earlier server
    said: list[str] = []
    server = coordinator_server.Server(home, say=said.append)
    server.report_refusals()
    for written in (line, "listening", line[:40], line.replace('"times": 1', '"times": 7')):
        server.front.seen(written)
    server.report_refusals()
    server.report_refusals()
    who = "refused 198.51.100.7: offers no certificate"
    assert said == [who, f"{who} (7 times)"]
    noted = [json.loads(text) for text in (home.folder / journal.JOURNAL_FILE).read_text().splitlines()]
    assert [(n["what"], n["who"], n["times"]) for n in noted] == [
        ("refused", "198.51.100.7", t) for t in (1, 7)
    ]
    assert not journal.verify(home.folder / journal.JOURNAL_FILE, home.key.public).wrong


def test_the_servers_figures_say_what_runs_and_who_was_refused(home, tmp_path):
    joined = SiteFolder.make(tmp_path / "site", Ticket.read(home.ticket_file("a")))
    home.admit("a", joined.key.public)
    server = coordinator_server.Server(home, say=lambda _: None)
    figures = ServerMetrics(server)
    server.front.seen(f'{access.MARK}{{"who": "198.51.100.7", "why": "offers no certificate", "times": 7}}')
    server.report_refusals()
    going = []
    figures.runs.tend = going.extend
    server.conductors._runs.append(SimpleNamespace(path=tmp_path / "run"))
    figures.tend()
    assert going == [tmp_path / "run"]
    server.front.starts, server.conductors.restarts = 3, 4
    page = prometheus.exposition(figures.metrics())
    values = parsed(page)
    assert (values["unskew_sites"][""], values["unskew_sites_admitted"][""]) == (2, 1)
    assert values["unskew_refusals_total"][""] == 7
    assert values["unskew_restarts_total"] == {"front": 2, "superlink": 0, "run": 4}
    assert 364 < (values["unskew_certificate_expiry_timestamp_seconds"][""] - time.time()) / 86400 < 366
    assert figures.problem() == "not running: the front, the SuperLink"
    assert "198.51" not in page


@pytest.mark.parametrize("error", [Paused("E203", "the disk is full"), OSError("E203 the disk is full")])
def test_a_full_disk_does_not_let_strangers_end_the_server(home, monkeypatch, error):
    said: list[str] = []
    server = coordinator_server.Server(home, say=said.append)
    server.front.seen(f'{access.MARK}{{"who": "x", "why": "y", "times": 1}}')

    def full(*_, **__):
        raise error

    monkeypatch.setattr(journal.Journal, "note", full)
    server.report_refusals()
    assert said == [
        "refused x: y",
        "the federation's journal lacks 1 lines about refusals: E203 the disk is full",
    ]


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
    monkeypatch.setattr(server.conductors, "tend", lambda: None)
    monkeypatch.setattr(home.__class__, "admitted", lambda self: {})
    return server


def test_a_program_that_ends_now_and_then_is_started_again(home, monkeypatch):
    server, clock = tended(home, monkeypatch), SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(server.front, "tend", lambda say: 1)
    monkeypatch.setattr(coordinator_server, "time", clock)
    for now in (0.0, 30.0, 61.0, 92.0):  # noqa: B007  the clock reads it
        server.tend()
    now = 93.0
    with pytest.raises(UsageError, match="E507 the front does not stay up"):
        server.tend()


def test_the_nodes_of_flowers_server_become_those_of_the_admitted_keys(home, monkeypatch):
    """Also if somebody has removed one there, or added one."""
    server, made, now = tended(home, monkeypatch), [], 0.0
    monkeypatch.setattr(coordinator_server, "time", SimpleNamespace(monotonic=lambda: now))
    keys = {site: PrivateKey.make().public for site in "ab"}
    a, b = (superlink.flower_key(key) for key in keys.values())
    nodes = {a: 1, b"a stranger's": 2, b"a revoked site's": 3}
    monkeypatch.setattr(home.__class__, "admitted", lambda self: keys)
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


def test_without_tls_no_server_listens_to_other_machines(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"], tls=False)
    with pytest.raises(UsageError, match="E503 without TLS the server listens on loopback only"):
        coordinator_server.Server(home, "0.0.0.0")


def test_a_second_server_is_refused_before_it_touches_anything(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        call("federation", "init", "lung", "--host", f"127.0.0.1:{port}", "--sites", "a", cwd=tmp_path)
        done = call("serve", "lung", cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E507")
    assert "Does it run already?" in done.err
    assert not (tmp_path / "federations/lung/flower/tasks.key").exists()


@pytest.mark.parametrize(
    ("bind", "remedy"),
    [
        (
            "192.0.2.1",
            "192.0.2.1 is no address of this machine: give --bind one that `ip address` lists, or 0.0.0.0",
        ),
        ("no.such.host.invalid", "no.such.host.invalid is no name of this machine"),
    ],
)
def test_an_address_of_another_machine_is_no_server_that_runs(tmp_path, bind, remedy):
    """The hint was "Does it run already?"."""
    call("federation", "init", "lung", "--host", "127.0.0.1", "--sites", "a", cwd=tmp_path)
    done = call("serve", "lung", "--bind", bind, cwd=tmp_path)
    assert (done.code, done.err[:4], remedy in done.err) == (2, "E507", True), done.err


def test_without_tls_a_federation_stays_on_one_machine(tmp_path):
    done = call(
        "federation", "init", "lung", "--host", "fl.example.org", "--sites", "a", "--no-tls", cwd=tmp_path
    )
    assert (done.code, done.err[:4]) == (2, "E503")
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a", "--no-tls", cwd=tmp_path)
    done = call("serve", "lung", "--bind", "0.0.0.0", cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E503")


def test_a_program_that_keeps_ending_by_itself_is_given_up_but_not_one_that_is_killed(home, monkeypatch):
    server = coordinator_server.Server(home, say=lambda _: None)
    codes = iter([-9] * 5 + [1] * 2 + [-9, 1])
    monkeypatch.setattr(server.front, "tend", lambda say: next(codes))
    monkeypatch.setattr(server.program, "tend", lambda say: None)
    monkeypatch.setattr(server.conductors, "tend", lambda: None)
    monkeypatch.setattr(home.__class__, "admitted", lambda self: {})
    for _ in range(8):
        server.tend()
    with pytest.raises(UsageError, match="E507 the front does not stay up"):
        server.tend()


def test_the_commands_of_a_federation(tmp_path):
    done = call("federation", "init", "lung", "--host", "h.example:9000", "--sites", "a,b", cwd=tmp_path)
    assert done.code == 0, done.err
    joined = call("join", "federations/lung/tickets/a.ticket", "--json", cwd=tmp_path)
    told = json.loads(joined.out)
    assert call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path).code == 2
    admitted = call("federation", "admit", "lung", "--compared", told["public"], cwd=tmp_path)
    assert told["fingerprint"] in admitted.out
    shown = json.loads(call("federation", "show", "lung", "--json", cwd=tmp_path).out)
    assert shown["sites"] == {"a": told["fingerprint"], "b": None}
    run = call("run", "fedavg", "--on", "lung", "--min-sites", "2", cwd=tmp_path)
    assert (run.code, run.err[:4]) == (2, "E109")
    assert call("run", "fedavg", "--on", "none", cwd=tmp_path).err.startswith("E161")
    assert call("serve", "none", cwd=tmp_path).code == 2
    checked = call("site", "check", "--data", "none.npz", cwd=tmp_path)
    assert checked.code == 3
    assert "FAIL  data" in checked.out


def test_a_site_is_told_what_a_study_would_take_from_it(tmp_path):
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b", cwd=tmp_path)
    call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 4)
    (tmp_path / "study.yaml").write_text("method: feddpms(alpha=5, width=8)\nmodel: cnn_small\nrounds: 4\n")
    done = call("site", "check", "--data", "d.npz", "--study", "study.yaml", "--json", cwd=tmp_path)
    told = "\n".join(json.loads(done.out)["leaves"])
    assert "weights" in told
    assert "feddpms/z at most" in told
    assert "infinite  end to end" in told
    assert "infinite  against the coordinator" in told
    assert any(f["what"] == "network" and not f["ok"] for f in json.loads(done.out)["found"])
    elsewhere = ("--folder", "no-site-yet")
    done = call("site", "check", "--data", "d.npz", "--study", "study.yaml", *elsewhere, cwd=tmp_path)
    assert done.code == 0
    assert "feddpms/z at most" in done.out
    assert "next  unskew join TICKET" in done.out
    assert call("site", "check", "--data", "d.npz", *elsewhere, cwd=tmp_path).err.startswith("E503")
    (tmp_path / "study.yaml").write_text("method: fedavg_ft\n")
    done = call("site", "check", "--data", "d.npz", "--study", "study.yaml", cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E506")


def test_a_folder_that_holds_another_run_is_left_as_it_is(tmp_path):
    """And one whose run is going on: refused before its deploy.json is written over."""
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a", cwd=tmp_path)
    call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    call("federation", "admit", "lung", "--compared", "site/a.pub", cwd=tmp_path)
    path = tmp_path / "runs/r"
    path.mkdir(parents=True)
    (path / "deploy.json").write_text("as it was")
    (path / "config.yaml").write_text(
        dump(
            study_rules.study_settings(
                conformance.short_settings(method="fedavg+clip_median", clients=1, lr=0.5)
            )
        )
    )
    on = ("run", "fedavg", "--on", "lung", "--min-sites", "1", "--name", "r", "--lr", "0.1")
    done = call(*on, cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E112"), done.err
    assert "lr was 0.5, is 0.1 now" in done.err
    with RunLock(path):
        for command in (on, ("resume", "runs/r")):
            done = call(*command, cwd=tmp_path)
            assert (done.code, done.err[:4]) == (2, "E110"), done.err
    assert (path / "deploy.json").read_text() == "as it was"


def test_the_flower_commands_are_shown(tmp_path):
    call("federation", "init", "lung", "--host", "h.example:9000", "--sites", "a,b", cwd=tmp_path)
    told = call("federation", "export-flower", "lung", cwd=tmp_path).out
    assert "unskew.federation.front federations/lung 0.0.0.0" in told
    assert "unskew.federation.flower_patches federations/lung/flower/superlink flower-superlink" in told
    assert "--enable-supernode-auth" in told
    assert told.count("python -m unskew.federation.site.worker site PATH --device cpu") == 2
    assert "FLWR_TELEMETRY_ENABLED=0" in told
    assert "coordinator.key" not in told


def test_durations():
    assert [seconds(t) for t in ("30s", "10m", "2h", "5", "1.5m")] == [30, 600, 7200, 5, 90]
    for text in ("", "0s", "soon", "-1m"):
        with pytest.raises(UsageError, match="E109"):
            seconds(text)


def test_both_ends_see_the_fingerprints_that_an_altered_ticket_cannot_keep(tmp_path):
    """N9: a ticket that was altered in the mail joined without a word."""
    begun = call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a", cwd=tmp_path)
    home = tmp_path / "federations/lung"
    prints = Coordinator.open(home).fingerprints
    assert set(prints) == {"coordinator", "authority"}
    ticket = tmp_path / "federations/lung/tickets/a.ticket"
    for text in (
        begun.out,
        call("federation", "show", "lung", cwd=tmp_path).out,
        call("join", str(ticket), cwd=tmp_path).out,
    ):
        for whose, fingerprint in prints.items():
            assert f"{whose:<11} {fingerprint}" in text
    other = Coordinator.make(tmp_path / "other", "lung", "127.0.0.1:9000", ["a"])
    theirs, given = Ticket.read(other.ticket_file("a")), Ticket.read(ticket)
    for key in prints:
        altered = replace(given, **{key: getattr(theirs, key)})
        altered.write(tmp_path / "altered.ticket")
        refused = call("join", "altered.ticket", "--folder", key, cwd=tmp_path)
        assert (refused.code, refused.err[:4]) == (2, "E503"), key
        altered.signed(other.key if key == "coordinator" else Coordinator.open(home).key).write(
            tmp_path / f"{key}.ticket"
        )
        shown = json.loads(call("join", f"{key}.ticket", "--folder", key, "--json", cwd=tmp_path).out)
        assert {whose for whose in prints if shown[whose] != prints[whose]} == {key}


def test_a_ticket_and_an_admission_can_be_taken_back(tmp_path):
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b", cwd=tmp_path)
    call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    renewed = call("federation", "ticket", "lung", "a", "--days", "3", cwd=tmp_path)
    assert "for one admission, until" in renewed.out
    refused = call("federation", "admit", "lung", "--compared", "site/a.pub", cwd=tmp_path)
    assert (refused.code, refused.err[:4]) == (2, "E503")
    assert "unskew federation ticket lung a" in refused.err
    call("join", "federations/lung/tickets/a.ticket", "--folder", "again", cwd=tmp_path)
    assert call("federation", "admit", "lung", "--compared", "again/a.pub", cwd=tmp_path).code == 0
    assert "revoked  a" in call("federation", "revoke", "lung", "a", cwd=tmp_path).out
    assert json.loads(call("federation", "show", "lung", "--json", cwd=tmp_path).out)["sites"]["a"] is None
    assert call("federation", "revoke", "lung", "a", cwd=tmp_path).code == 2
