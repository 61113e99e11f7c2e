"""Real processes on loopback: a run all of whose processes are killed at once, at the server and at the sites."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.deploy import fake  # noqa: F401  skips where cryptography is missing
from tests.deploy.loopback import running, simulated

pytestmark = [pytest.mark.slow, pytest.mark.flower]
TWO = "ab"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung"), TWO) as federation:
        yield federation


def test_everything_dies_at_once_and_the_run_is_resumed_to_the_simulators_weights(federation):
    for site in TWO:
        federation.until(lambda site=site: federation.is_ready(site), 90)
    federation.start_run("killed", "--min-sites", "2", "--rounds", "3", deadline="30s", wait="1s")
    federation.after_round("killed", 1)
    for name in ("run", "serve", *TWO):
        federation.kill(name)
    round_, weights = federation.saved("killed")
    assert 3 > round_ >= 1
    assert weights == simulated(round_, clients=2)

    federation.up(TWO)
    federation.start_run("killed", "--min-sites", "2", "--rounds", "3", deadline="30s")  # resumes it, and waits longer
    assert json.loads(federation.end("run"))["sha256"] == simulated(3, clients=2)
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/killed")
