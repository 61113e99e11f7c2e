"""A part of `make campaign`, and what the harness itself must notice."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing

pytest.importorskip(
    "cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'"
)

from tests.campaign import ground, kills, ongoing
from tests.campaign.cases import WRONG, Campaign, CannotTry, Case, until
from tests.campaign.ground import Ground
from tests.campaign.ongoing import Ongoing
from tests.federation.loopback import simulated


def ends(work) -> str:
    campaign = Campaign(lambda text: None)
    campaign.take([Case("f", "n", work, 0.3)])
    return campaign.lines[0].verdict


def test_a_case_that_hangs_is_ended_and_wrong():
    """Also one that waits inside something that takes every error for its own."""

    def stubborn() -> str:
        while True:
            try:
                until(lambda: False, 60, "never")
            except Exception:
                continue

    began = time.monotonic()
    assert ends(stubborn) == WRONG
    assert time.monotonic() - began < 5


def test_the_simulators_weights_are_those_of_who_answered(tmp_path):
    everybody = {1: [0, 1, 2], 2: [0, 1, 2]}
    assert ongoing.replayed(tmp_path / "t.csv", 2, everybody, "abc") == simulated(2, clients=3)
    assert ongoing.replayed(tmp_path / "t.csv", 2, everybody | {2: [0, 2]}, "abc") != simulated(2, clients=3)


def test_what_is_left_running_is_seen(tmp_path):
    assert ground.left_in(tmp_path) == {}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=tmp_path)
    try:
        assert list(ground.left_in(tmp_path)) == [left.pid]
    finally:
        left.kill()
        left.wait()
    assert ground.left_in(tmp_path) == {}


def test_a_clock_that_is_moved_moves_in_processes_that_run(tmp_path):
    try:
        clock = ground.Clock.several(tmp_path, ["one"])["one"]
    except CannotTry as error:
        pytest.skip(str(error))
    code = "import datetime, time; begun = time.monotonic(); input(); "
    code += "print(time.time(), datetime.datetime.now(datetime.UTC).timestamp(), time.monotonic() - begun)"
    command = [sys.executable, "-S", "-c", code]
    child = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=clock.environment)
    clock.move(-3600.5)
    out, _ = child.communicate("\n")
    seen = [float(word) for word in out.split()]
    assert all(3590 < time.time() - then < 3620 for then in seen[:2])
    assert 0 <= seen[2] < 60


@pytest.mark.slow
@pytest.mark.flower
def test_a_part_of_the_campaign(tmp_path):
    """Two kills and two attacks, with one site."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    from tests.campaign.attacks import strangers

    campaign, federation = Campaign(print), Ground(tmp_path)
    try:
        federation.begin("a")
        run = Ongoing(federation, "part", 8, least=1, wait_s=1)
        bare = strangers.bare(federation)
        campaign.take([
            Case("runs", "begins", run.begin),
            Case("attacks", "no certificate", lambda: strangers.call(run, bare)),
            Case("attacks", "400 MB", lambda: strangers.pour(run, None)),
            Case("kills", "a worker", partial(kills.kill, run, "worker a", 0.0, True)),
            Case("kills", "the front", partial(kills.kill, run, "front", 0.0, True)),
            Case("runs", "ends", run.end),
        ])  # fmt: skip
    finally:
        left = federation.close()
    assert not campaign.wrong, campaign.wrong
    assert not left
