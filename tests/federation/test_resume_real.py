"""Real processes on loopback: runs whose server side or command line is killed, and a new site."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json
import os
import shutil
import signal
from dataclasses import dataclass, field

from tests.federation.loopback import running, simulated

pytestmark = [pytest.mark.slow, pytest.mark.flower]
TWO = "ab"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung"), TWO) as federation:
        yield federation


ROUNDS = "8"


@dataclass
class Interrupted:
    """A run during which something is killed four times. saved: what each kill left, the checkpoint's round and its weights'
    digest."""

    saved: list[tuple[int, str]] = field(default_factory=list)
    result: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def interrupted(federation) -> Interrupted:
    """The front and the SuperLink, each alone, after which the run goes on by itself; then the run and the
    server, and every process there is, after which it is resumed.

    Two sites do for this, and take fewer processes than three; the run does not wait for the third.
    """
    run = Interrupted()

    def next_round() -> None:
        federation.after_round("killed", federation.saved("killed")[0] + 1)

    for site in TWO:
        federation.until(lambda site=site: federation.is_ready(site), 90)
    federation.start_run("killed", "--min-sites", "2", "--rounds", ROUNDS, deadline="30s", wait="1s")
    federation.after_round("killed", 1)
    for program in ("unskew.federation.front", "flower-superlink"):
        os.kill(federation.pid("serve", program), signal.SIGKILL)
        run.saved.append(federation.saved("killed"))
        next_round()

    for name in ("run", "serve"):
        federation.kill(name)
    run.saved.append(federation.saved("killed"))
    federation.start("serve", "serve", "lung")
    federation.start("run", "resume", "runs/killed", "--json")
    next_round()

    for name in ("run", "serve", *TWO):
        federation.kill(name)
    run.saved.append(federation.saved("killed"))
    federation.up(TWO)
    federation.start("run", "resume", "runs/killed", "--json")
    run.result = json.loads(federation.end("run"))
    return run


@pytest.mark.parametrize("program", ["the front", "the SuperLink"])
def test_a_program_of_the_server_that_dies_is_started_again_and_the_run_goes_on(
    federation, interrupted, program
):
    said = [line for line in federation.log("serve").splitlines() if "will be restarted" in line]
    assert [line for line in said if line.startswith(program) and "ended with code -9" in line], said


def test_every_death_left_the_simulators_weights_and_the_run_went_on(interrupted):
    rounds = [round_ for round_, _ in interrupted.saved]
    assert sorted(set(rounds)) == rounds, "each time it went on"
    assert int(ROUNDS) > rounds[-1] >= 4
    for round_, weights in interrupted.saved:
        assert weights == simulated(round_, clients=2)


def test_a_run_that_was_killed_ends_with_the_simulators_weights_and_its_journal_holds(
    federation, interrupted
):
    assert interrupted.result["sha256"] == simulated(int(ROUNDS), clients=2)
    assert "signed by" in federation.do("federation", "audit", "lung", "runs/killed")


def test_a_run_outlives_its_terminal_and_says_how_to_go_on_when_it_is_stopped(federation):
    federation.start_run("left", "--without", "c", "--rounds", "200", wait="30s")
    federation.after_round("left", 1)
    federation.running["run"].send_signal(signal.SIGHUP)
    assert "unskew watch runs/left" in federation.do("resume", "runs/left", code=2)
    federation.after_round("left", 3)
    federation.running["run"].send_signal(signal.SIGTERM)
    assert "unskew resume runs/left" in federation.end("run", 143)
    assert json.loads((federation.root / "runs/left/ending.json").read_text())["state"] == "stopped"


def test_a_fourth_site_needs_no_restart(federation):
    federation.do("federation", "add", "lung", "d")
    shutil.copy(federation.root / "b.npz", federation.root / "d.npz")
    federation.do("join", "federations/lung/tickets/d.ticket", "--folder", "site-d")
    federation.do("federation", "admit", "lung", "--compared", "site-d/d.pub")
    federation.start_site("d")
    federation.until(lambda: federation.is_ready("d"), 60)
    federation.start_run("four", "--without", "c", "--rounds", "2", "--min-sites", "3", wait="60s")
    federation.end("run")
    assert [e["answered"] for e in federation.events("four") if e["code"] == "round"] == [[0, 1, 2]] * 2
