"""Real processes on loopback: a site that dies, one that hangs, one whose network is cut, one whose worker is
killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import Cable, running

pytestmark = [pytest.mark.slow, pytest.mark.flower]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung")) as federation:
        yield federation


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
    """A run in which b hangs and c loses its network, and then a's worker is killed.

    during, after, at_last: the lines of its rounds; events: all of them, of which `since` begin with the
    kill;
    worker_s: until a's next worker was there.
    """

    during: list[str]
    after: list[str]
    at_last: list[str]
    events: list[dict]
    since: list[dict]
    worker_s: float


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
    killed = len(federation.rounds("cut"))
    worker = federation.pid("a", "unskew.federation.site.worker")
    os.kill(worker, signal.SIGSTOP)
    federation.until(lambda: works_on_a_request(federation.root / "site-a"), 60)
    told, began = len(federation.events("cut")), time.monotonic()
    os.kill(worker, signal.SIGKILL)
    federation.until(lambda: federation.pid("a", "unskew.federation.site.worker", worker) != worker, 30)
    worker_s = time.monotonic() - began
    federation.until(
        lambda: any(": 3/3 sites" in line for line in federation.rounds("cut")[killed + 1 :]), 120
    )
    rounds = federation.rounds("cut")
    events = federation.events("cut")
    yield Trouble(
        rounds[before:mended], rounds[mended:killed], rounds[killed:], events, events[told:], worker_s
    )
    cable.close()


def works_on_a_request(site: Path) -> bool:
    """Whether a site whose worker stands still has handed it a request: the one it had answered before is
    gone."""
    seen = []
    for _ in range(2):
        seen.append((site / "answering").read_bytes() if (site / "answering").exists() else b"")
        time.sleep(1)
    return bool(seen[0]) and seen[0] == seen[1]


def test_the_round_goes_on_without_a_hung_site_and_one_whose_network_is_cut(trouble):
    assert any(": 1/" in line for line in trouble.during)


@pytest.mark.parametrize("site", ["b", "c"])
def test_a_hung_site_and_one_whose_network_is_cut_are_named(trouble, site):
    texts = [e["text"] for e in trouble.events if e["code"] == "E311"]
    assert any(text.startswith(f"{site} ") for text in texts), texts


def test_a_hung_site_and_one_whose_network_is_cut_are_taken_back(trouble):
    assert any(": 3/3 sites" in line for line in trouble.after)


def test_a_worker_that_is_killed_is_said_and_restarted_within_seconds_and_the_run_goes_on(
    federation, trouble
):
    """N11: its site was online and silent for twelve minutes."""
    assert trouble.worker_s < 10
    assert "the worker ended with code -9 and will be restarted" in federation.log("a")
    assert any(": 3/3 sites" in line for line in trouble.at_last)
    first = next(event["text"] for event in trouble.since if event.get("text", "").startswith("a "))
    assert "the site's worker ended while it worked on this request" in first, "it said so at once"
