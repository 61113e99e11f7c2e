"""A run that goes on in another process is followed line by line until it says how it ended."""

from __future__ import annotations

import json

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import StateError, UsageError
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.orders import ENDING, LOG, RunStart, follow
from unskew.records.run_lock import RunLock


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(orders, "STATUS_S", 0.0)
    monkeypatch.setattr(orders, "LOOK_S", 0.0)


def played(run, steps, at=0):
    """(what is said, the ending) while each look at the run's state does the next of these steps, which
    return the state."""
    said, each = [], iter(steps)
    return said, follow(run, RunStart(1, at), lambda: next(each)(), said.append)


def wrote(run, text, state="running"):
    def step():
        with open(run / LOG, "a") as log:
            log.write(text)
        return state

    return step


def ended(run, state="finished:completed"):
    def step():
        (run / ENDING).write_text(json.dumps({"state": "done"}))
        return state

    return step


def test_lines_are_said_once_and_whole_from_where_the_run_began(tmp_path):
    (tmp_path / LOG).write_text("of an earlier start\n")
    at = (tmp_path / LOG).stat().st_size
    steps = [wrote(tmp_path, "round 1\nrou"), wrote(tmp_path, "nd 2\n"), wrote(tmp_path, ""), ended(tmp_path)]
    assert played(tmp_path, steps, at) == (["round 1", "round 2"], {"state": "done"})


def test_a_run_is_followed_while_it_goes_on_and_not_when_its_process_is_gone(tmp_path):
    """What ended without a word can be continued."""
    gone = [wrote(tmp_path, "", state) for state in ("pending", "running", "finished:failed")]
    with pytest.raises(UsageError, match=r"E507 .*ended before it could say why.*unskew resume"):
        played(tmp_path, gone)
    assert played(tmp_path, [*gone[:2], ended(tmp_path)])[1] == {"state": "done"}


def test_a_run_that_another_process_conducts_is_not_said_to_have_ended(tmp_path):
    """Two `unskew resume` at once: the one that came second said that the run's process had ended, and to
    resume it."""
    gone = [wrote(tmp_path, "E110 run r is in use by pid 1\n", "finished:failed")]
    with (
        RunLock(tmp_path),
        pytest.raises(StateError, match=r"E110 .* in use by pid \d+ .* To follow it: unskew attach"),
    ):
        played(tmp_path, gone)


def test_a_server_that_is_gone_is_said_once_and_so_is_that_it_is_back(tmp_path):
    """`unskew run` stood still without a word for as long as nobody started `unskew serve` again."""
    silent = wrote(tmp_path, "", "")
    steps = [
        wrote(tmp_path, "round 1\n"),
        silent,
        wrote(tmp_path, ""),
        silent,
        silent,
        silent,
        wrote(tmp_path, "round 2\n"),
    ]
    said, _ = played(tmp_path, [*steps, ended(tmp_path)])
    assert said[0] == "round 1"
    assert said[1].startswith("E507 the server does not answer; is `unskew serve` running?")
    assert said[2:] == ["the server answers again", "round 2"]


def test_what_was_started_is_read_back(tmp_path):
    RunStart(7, 40).write(tmp_path)
    assert RunStart.read(tmp_path) == RunStart(7, 40)
    (tmp_path / orders.STARTED_FILE).write_text("[")
    with pytest.raises(StateError, match="E201"):
        RunStart.read(tmp_path)
    with pytest.raises(UsageError, match="E117"):
        RunStart.read(tmp_path / "none")
