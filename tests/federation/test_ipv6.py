"""Real processes on ::1: a whole federation over IPv6, from which a site is interrupted in the middle of a
round."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import below, running, simulated
from tests.federation.test_addresses import has_ipv6
from tests.federation.test_lost_sites import works_on_a_request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flower,
    pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1"),
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung"), host="[::1]") as federation:
        yield federation


def test_three_sites_end_with_the_simulators_weights_over_ipv6(federation):
    federation.start_run("six", "--min-sites", "3", deadline="120s")
    result = json.loads(federation.end("run"))
    assert result["sha256"] == simulated(2, clients=3)
    assert f"[::1]:{federation.home.port}" in federation.log("serve")


def test_a_site_that_its_operator_interrupts_in_a_round_leaves_nothing_and_is_named(federation):
    """Ctrl-C at a terminal, while its worker works on a request."""
    federation.start_run("left", "--min-sites", "2", "--rounds", "4", deadline="60s")
    federation.after_round("left", 1)
    worker = federation.pid("c", "unskew.federation.site.worker")
    os.kill(worker, signal.SIGSTOP)  # so that it surely works on one
    federation.until(lambda: works_on_a_request(federation.root / "site-c"), 60)
    processes = [federation.running["c"].pid, *below(federation.running["c"].pid)]
    os.kill(processes[0], signal.SIGINT)
    assert federation.running.pop("c").wait(60) == 130
    federation.until(lambda: not any(map(alive, processes)), 10)
    assert "Traceback" not in federation.log("c")
    federation.end("run")
    assert "round 4: 2/3 sites" in federation.rounds("left")[-1]
    named = [event for event in federation.events("left") if event.get("text", "").startswith("c ")]
    assert named
    assert {event["code"] for event in named} <= {"E311"}
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/left")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
