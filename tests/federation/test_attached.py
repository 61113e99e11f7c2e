"""Real processes on loopback: a run outlives its command line, and a federation grows without being made
anew."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import running, simulated

pytestmark = [pytest.mark.slow, pytest.mark.flower]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung"), "ab") as federation:
        for site in "ab":
            federation.until(lambda site=site: federation.is_ready(site), 90)
        yield federation


def test_a_run_whose_command_line_was_killed_is_attached_to_and_ends_with_the_same_bits(federation):
    """N16: after the command line died nobody could attach."""
    federation.start_run("left", "--without", "c", "--rounds", "40", wait="30s")
    federation.after_round("left", 1)
    federation.kill("run")
    assert "unskew attach runs/left" in federation.do("resume", "runs/left", code=2)
    shown = federation.do("attach", "runs/left").splitlines()
    assert any("round 1: 2/2 sites" in line for line in shown)
    assert any("round 40: 2/2 sites" in line for line in shown)
    result = json.loads(federation.do("attach", "runs/left", "--json"))
    assert result["sha256"] == simulated(40, 2)


def test_a_fourth_site_and_a_renewed_certificate_need_no_restart(federation):
    """N14: while the server and the other sites go on."""
    federation.do("federation", "renew", "lung", "--also", "localhost,fd00::1")
    federation.do("federation", "add", "lung", "d")
    shutil.copy(federation.root / "b.npz", federation.root / "d.npz")
    federation.do("join", "federations/lung/tickets/d.ticket", "--folder", "site-d")
    federation.do("federation", "admit", "lung", "--compared", "site-d/d.pub", "--samples", "100000")
    federation.start_site("d")
    federation.until(lambda: federation.is_ready("d"), 60)
    federation.start_run("four", "--without", "c", "--rounds", "2", "--min-sites", "3", wait="60s")
    federation.end("run")
    assert [e["answered"] for e in federation.events("four") if e["code"] == "round"] == [[0, 1, 2]] * 2
    log = federation.log("runs/four/server")
    assert "(at most 100,000)" in log
    assert "(no bound)" in log
