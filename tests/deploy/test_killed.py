"""Real processes on loopback: a run whose server side is killed three times and resumed.

The fixture lives through the run and keeps what it saw; the tests look at that.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field

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


@dataclass
class Interrupted:
    """A run that is killed three times. saved: what each kill left, the checkpoint's round and its weights' digest."""

    saved: list[tuple[int, str]] = field(default_factory=list)
    after_superlink: str = ""
    result: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def interrupted(federation) -> Interrupted:
    """The SuperLink alone; then the run and the server; then every process there is. Each time it is resumed.

    Two sites do for this, and take fewer processes than three; the run does not wait for the third.
    """
    run = Interrupted()
    for site in TWO:
        federation.until(lambda site=site: federation.is_ready(site), 90)
    federation.start_run("killed", "--min-sites", "2", "--rounds", "4", deadline="30s", wait="1s")
    federation.after_round("killed", 1)
    os.kill(federation.pid("serve", "flower-superlink"), signal.SIGKILL)
    federation.end("run", code=2)
    run.after_superlink = federation.log("run")
    run.saved.append(federation.saved("killed"))

    federation.start_run("killed", "--min-sites", "2", "--rounds", "4", deadline="30s")  # resumes it, and waits longer
    federation.after_round("killed", 2)
    for name in ("run", "serve"):
        federation.kill(name)
    run.saved.append(federation.saved("killed"))

    federation.start("serve", "serve", "lung")
    federation.start("run", "resume", "runs/killed", "--json")
    federation.after_round("killed", 3)
    for name in ("run", "serve", *TWO):
        federation.kill(name)
    run.saved.append(federation.saved("killed"))

    federation.up(TWO)
    federation.start("run", "resume", "runs/killed", "--json")
    run.result = json.loads(federation.end("run"))
    return run


def test_a_superlink_that_dies_alone_is_started_again_and_the_run_can_be_resumed(federation, interrupted):
    assert "unskew resume" in interrupted.after_superlink
    assert "will be restarted" in federation.log("serve")
    round_, weights = interrupted.saved[0]
    assert round_ >= 1
    assert weights == simulated(round_, clients=2)


def test_a_server_that_dies_is_resumed_to_the_simulators_weights(interrupted):
    (before, _), (round_, weights) = interrupted.saved[:2]
    assert round_ > before
    assert weights == simulated(round_, clients=2)


def test_everything_dies_at_once_and_the_run_is_resumed_to_the_simulators_weights(federation, interrupted):
    (before, _), (round_, weights) = interrupted.saved[1:]
    assert 4 > round_ > before
    assert weights == simulated(round_, clients=2)
    assert interrupted.result["sha256"] == simulated(4, clients=2)
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/killed")
