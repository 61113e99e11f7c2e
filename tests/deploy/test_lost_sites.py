"""Real processes on loopback: a site that dies, one that hangs, one whose network is cut."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.deploy import fake  # noqa: F401  skips where cryptography is missing
from tests.deploy.loopback import Cable, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung")) as federation:
        yield federation


def test_a_site_that_dies_is_left_out_after_the_deadline(federation):
    federation.start_run("dead", "--min-sites", "2", "--rounds", "2", deadline="25s")
    federation.after_round("dead", 1)
    federation.kill("c")
    result = json.loads(federation.end("run"))
    events = federation.events("dead")
    answered = [e["answered"] for e in events if e["code"] == "round"]
    assert answered[0] == [0, 1, 2]
    assert answered[-1] == [0, 1]
    assert any(e["code"] in ("E311", "E312") and e["text"].startswith("c ") for e in events)
    assert result["scores"]["global"] > 0.3


@pytest.fixture
def cable(federation):
    """What leads site c to the server."""
    cable = Cable(federation.home.port)
    yield cable
    cable.close()


def test_a_hung_site_and_one_whose_network_is_cut_are_left_out_named_and_taken_back(federation, cable):
    """Site c, which has died, comes back over a cable that can be cut."""
    ticket = federation.root / "site-c/ticket.json"
    ticket.write_text(json.dumps(json.loads(ticket.read_text()) | {"port": cable.port}))
    federation.start_site("c")
    federation.start_run("cut", "--min-sites", "1", "--rounds", "200", deadline="25s")
    federation.until(lambda: any(": 3/3 sites" in line for line in federation.rounds("cut")), 240)

    worker = federation.pid("b", "unskew.deploy.worker")
    os.kill(worker, signal.SIGSTOP)
    cable.cut()
    federation.until(lambda: any(": 1/" in line for line in federation.rounds("cut")), 120)
    os.kill(worker, signal.SIGCONT)
    cable.mend()
    before = len(federation.rounds("cut"))
    federation.until(lambda: any(": 3/3 sites" in line for line in federation.rounds("cut")[before:]), 300)
    events = federation.events("cut")
    for site in "bc":
        assert any(e["code"] in ("E311", "E312") and e["text"].startswith(f"{site} ") for e in events), (site, events)
