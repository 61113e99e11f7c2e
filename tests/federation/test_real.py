"""Real processes on loopback: a quiet run, sites that must not be let in, and sites that die, hang or are cut."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.federation.loopback import Cable, Loopback, running, simulated
from unskew.federation.tickets import Coordinator, Ticket

pytestmark = [pytest.mark.slow, pytest.mark.flower]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung")) as federation:
        yield federation


@dataclass
class Peace:
    """A run that nobody disturbs. refused: what `site run` said with a ticket of another authority."""

    result: dict
    second_start: str
    refused: str


@pytest.fixture(scope="module")
def peace(federation) -> Peace:
    """While it goes on, somebody resumes it, and two sites knock that must not be let in.

    A site stands still meanwhile: somebody who starts a second time may be slower than two rounds.
    """
    federation.do("join", "federations/lung/tickets/c.ticket", "--folder", "site-stranger")
    federation.start("stranger", "site", "run", "--data", "c.npz", "--folder", "site-stranger")
    federation.start_run("peace", "--min-sites", "3", deadline="120s")
    federation.until(lambda: "3/3 sites are there" in federation.log("runs/peace/server"), 90)
    worker = federation.pid("a", "unskew.federation.site.worker")
    os.kill(worker, signal.SIGSTOP)
    second_start = federation.do("resume", "runs/peace", code=2)
    os.kill(worker, signal.SIGCONT)
    federation.do(
        "join", federation.ticket("other", authority=another_authority(federation)), "--folder", "other"
    )
    refused = federation.do("site", "run", "--data", "c.npz", "--folder", "other", code=2)
    result = json.loads(federation.end("run"))
    federation.until(lambda: "Is c.pub admitted?" in federation.log("stranger"), 60)
    federation.stop("stranger")
    return Peace(result, second_start, refused)


def another_authority(federation: Loopback) -> str:
    """The certificate of a federation that has nothing to do with this one."""
    Coordinator.make(federation.root / "elsewhere", "elsewhere", "127.0.0.1:9", ["c"])
    return Ticket.read(federation.root / "elsewhere" / "tickets" / "c.ticket").authority


def test_three_sites_end_with_the_simulators_weights(federation, peace):
    assert peace.result["sha256"] == simulated(2, clients=3)
    assert (federation.root / "runs/peace/report.html").exists()
    watched = federation.do("watch", "runs/peace")
    assert "round    2/2" in watched
    assert "3/3 answered" in watched
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/peace")


def test_a_sites_own_process_holds_no_torch_beside_its_workers(federation, peace):
    """It does for days, at every site: 200 MB, and a second and a half at each start."""
    pids = federation.running["a"].pid, federation.pid("a", "unskew.federation.site.worker")
    assert ["libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in pids] == [False, True]


def test_a_second_start_of_a_run_that_is_going_on_is_refused(peace):
    """Its journal and its ending stay its own, as the first run's result shows."""
    assert "E110" in peace.second_start


def test_a_site_with_another_authority_stops_at_once(peace):
    assert "E503" in peace.refused


def test_a_site_whose_key_was_not_admitted_is_not_let_in_and_is_told_why(federation, peace):
    assert "Is c.pub admitted?" in federation.log("stranger")
    assert "refused 127.0.0.1: its certificate is not of an admitted key" in federation.log("serve")


def test_a_site_never_asks_the_server_for_code(federation, peace):
    """Flower's server logs who fetches a run or its app."""
    log = federation.log("federations/lung/flower/superlink")
    assert "Fleet.ActivateNode" in log
    assert not re.findall(r"Fleet\.GetFab|Fleet\.GetRun|/v1/fleet/get-fab|/v1/fleet/get-run", log)


def test_a_site_that_dies_is_left_out_after_the_deadline(federation):
    federation.start_run("dead", "--min-sites", "2", deadline="10s")
    federation.after_round("dead", 1)
    federation.kill("c")
    result = json.loads(federation.end("run"))
    events = federation.events("dead")
    answered = [e["answered"] for e in events if e["code"] == "round"]
    assert answered[0] == [0, 1, 2]
    assert answered[-1] == [0, 1]
    assert any(e["code"] == "E311" and e["text"].startswith("c ") for e in events)
    assert result["scores"]["global"] > 0.3


@dataclass
class Trouble:
    """A run in which b hangs and c loses its network.

    during, after: the lines of its rounds meanwhile and since; events: all of them.
    """

    during: list[str]
    after: list[str]
    events: list[dict]


@pytest.fixture(scope="module")
def trouble(federation) -> Iterator[Trouble]:
    """Site c, which has died, comes back over a cable that can be cut."""
    cable = Cable(federation.home.port)
    ticket = federation.root / "site-c/ticket.json"
    ticket.write_text(json.dumps(json.loads(ticket.read_text()) | {"port": cable.port}))
    federation.start_site("c")
    federation.start_run("cut", "--min-sites", "1", "--rounds", "200", deadline="10s")
    federation.until(lambda: any(": 3/3 sites" in line for line in federation.rounds("cut")), 240)

    before = len(federation.rounds("cut"))
    worker = federation.pid("b", "unskew.federation.site.worker")
    os.kill(worker, signal.SIGSTOP)
    cable.cut()
    federation.until(lambda: any(": 1/" in line for line in federation.rounds("cut")), 120)
    os.kill(worker, signal.SIGCONT)
    cable.mend()
    mended = len(federation.rounds("cut"))
    federation.until(lambda: any(": 3/3 sites" in line for line in federation.rounds("cut")[mended:]), 300)
    rounds = federation.rounds("cut")
    yield Trouble(rounds[before:mended], rounds[mended:], federation.events("cut"))
    cable.close()


def test_a_hung_site_and_one_whose_network_is_cut_are_named_left_out_and_taken_back(trouble):
    assert any(": 1/" in line for line in trouble.during)
    texts = [e["text"] for e in trouble.events if e["code"] == "E311"]
    assert {site for site in "bc" if any(text.startswith(f"{site} ") for text in texts)} == {*"bc"}, texts
    assert any(": 3/3 sites" in line for line in trouble.after)
