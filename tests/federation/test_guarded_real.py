"""Real processes on loopback: sums alone are read, and one site is killed in the middle of a round."""

from __future__ import annotations

import json
import re

import pytest

import unskew
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import STUDY, Loopback, samples

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
pytestmark = [pytest.mark.slow, pytest.mark.flower]
ON = ("--secure-aggregation", "on")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Loopback(tmp_path_factory.mktemp("lung"), "abcd")
    try:
        federation.up("abcd")
        yield federation
    finally:
        federation.stop()


def test_four_sites_end_with_the_simulators_bits(federation):
    federation.start_run("whole", *ON)
    result = json.loads(federation.end("run"))
    told = [e for e in federation.events("whole") if e["code"] != "round"]
    assert told == []
    simulated = unskew.run(**STUDY, data=samples(4), lanes="1", clients=4, secure_aggregation="on")
    assert result["sha256"] == simulated.digest
    assert "only in the sum of 3 or more clients" in federation.log("runs/whole/server")


def test_a_site_that_is_killed_after_it_has_trained_is_left_out_of_the_sum(federation):
    """It is among the sites that the sum began with, so shares of its keys may be out already. The seed is
    another one than that of the run of all four, whose round 2 had the same numbers: what differed from that
    sum would be the update of `d`."""
    before = len(re.findall("trained on", federation.log("d")))
    federation.start_run("killed", *ON, "--rounds", "4", "--seed", "1", deadline="10s")
    federation.until(lambda: len(re.findall("trained on", federation.log("d"))) == before + 2, 90)
    federation.kill("d")
    result = json.loads(federation.end("run"))
    events = federation.events("killed")
    assert [e["answered"] for e in events if e["code"] == "round"] == [
        [0, 1, 2, 3],
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert {e["code"] for e in events if e["code"] != "round"} <= {"E311"}
    assert all(e["text"].startswith("d ") for e in events if e["code"] != "round")
    assert result["scores"]["global"] > 0.3
