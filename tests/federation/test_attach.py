"""A run that goes on without the command that started it can be followed again, left again, and ended."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import unskew.federation.coordinator
from tests.cli.calling import call
from tests.federation import fake
from unskew.cli import attach, remote_run
from unskew.errors import StateError, UsageError
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.orders import ENDING, ORDER_FILE, Order, RunStart, Terms, follow
from unskew.federation.tickets import Coordinator
from unskew.records.run_lock import RunLock
from unskew.system import disk


@pytest.fixture
def run(tmp_path):
    """The folder of a run that was started as Flower's number 7, after an earlier process had written a
    line."""
    home = Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:9", ["a"], tls=False)
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    (run / ORDER_FILE).write_text(
        json.dumps(Order(run, home.folder, fake.small("fedavg").as_dict(), Terms()).as_json())
    )
    (run / orders.LOG).write_text("09:00:00 of an earlier process\n")
    RunStart(7, len("09:00:00 of an earlier process\n")).write(run)
    return run


@pytest.fixture
def superlink(monkeypatch):
    """Stands in for what asks Flower. Its calls; status: what it says of the run."""
    stub = SimpleNamespace(calls=[], state="running")
    stub.status = lambda home, number: stub.state
    stub.stop = lambda home, number: stub.calls.append(("stop", number))
    monkeypatch.setattr(unskew.federation.coordinator, "submission", stub, raising=False)
    monkeypatch.setattr(orders, "STATUS_S", 0.1)
    monkeypatch.setattr(orders, "LOOK_S", 0.02)
    return stub


def add(run, *lines, ending=None):
    with open(run / orders.LOG, "a") as log:
        log.writelines(f"{line}\n" for line in lines)
    if ending:
        disk.replace(run / ENDING, json.dumps(ending))  # whole at once, as a run's process writes it


PAUSED = {"state": "stopped", "code": 75, "text": "E206 too few sites."}


def test_a_run_can_be_attached_to_after_its_command_line_died(run, superlink, capsys):
    """N16: progress of this process from its beginning, and the result."""
    add(run, "09:01:00 round 1: 3/3 sites")
    later = threading.Timer(0.2, add, (run, "09:02:00 round 2: 3/3 sites"), {"ending": PAUSED})
    later.start()
    done = call("attach", str(run))
    assert done.out.splitlines()[:2] == ["09:01:00 round 1: 3/3 sites", "09:02:00 round 2: 3/3 sites"]
    assert f"Resume with: unskew resume {run}" in done.out
    assert (done.code, superlink.calls) == (75, [])


def test_leaving_a_run_does_not_end_it(run, superlink, monkeypatch, capsys):
    """N16: Ctrl-C in `attach` detaches, and only `--stop` ends the run."""

    def interrupted(text):
        raise KeyboardInterrupt

    add(run, "09:01:00 round 1: 3/3 sites")
    monkeypatch.setattr(
        remote_run, "print_text", lambda text: interrupted(text) if text[0] == "0" else print(text)
    )
    with pytest.raises(KeyboardInterrupt):
        attach.command(run, stop=False, as_json=False)
    assert superlink.calls == []
    assert f"unskew attach {run}" in capsys.readouterr().out


def test_attach_can_end_a_run(run, superlink):
    """N16: nobody could end a run whose command line had died."""
    add(run, ending={"state": "stopped", "code": 2, "text": "E507 the run's process was told to end"})
    done = call("attach", str(run), "--stop")
    assert (done.code, superlink.calls) == (2, [("stop", 7)])
    assert "E507" in done.out


def test_resume_says_how_to_follow_a_run_that_goes_on(run, monkeypatch):
    """N16: it said E110 and nothing more."""
    monkeypatch.setattr(remote_run, "ENDING_S", 0.1)
    with RunLock(run), pytest.raises(StateError, match=rf"E110 .* is in use by pid .*unskew attach {run}"):
        remote_run.conduct(run, as_json=True)


def test_a_run_whose_process_is_gone_without_a_word_is_not_waited_for(run, superlink):
    superlink.state = "finished"
    with pytest.raises(UsageError, match="E507 the run's process ended before it could say why"):
        follow(run, RunStart.read(run), lambda: "finished", lambda text: None)
    assert call("attach", str(run)).code == 2


def test_the_clock_of_the_machine_does_not_matter(run, superlink, monkeypatch):
    """N4: endings were compared with the time by file times; an hour back, and `run` waited for ever."""
    add(run, "09:01:00 done", ending=PAUSED)
    hour_ago = time.time() - 3600
    os.utime(run / ENDING, (hour_ago, hour_ago))
    os.utime(run / orders.LOG, (hour_ago, hour_ago))
    said = []
    assert follow(run, RunStart.read(run), lambda: "running", said.append) == PAUSED
    assert said == ["09:01:00 done"]


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda run: (run / orders.STARTED_FILE).unlink(), "E117"),
        (lambda run: (run / orders.STARTED_FILE).write_text("{"), "E201"),
        (lambda run: (run / orders.STARTED_FILE).write_text('{"number": 1}'), "E201"),
    ],
)
def test_what_is_no_such_run_is_refused_in_a_sentence(run, superlink, prepare, code):
    prepare(run)
    done = call("attach", str(run))
    assert (done.code, done.err[:4]) == (2, code)


def test_a_simulation_is_no_such_run(tmp_path):
    assert call("attach", str(tmp_path / "nowhere")).err.startswith("E117")


def test_half_a_line_is_not_shown_before_it_is_whole(run, superlink):
    (run / orders.LOG).write_bytes((run / orders.LOG).read_bytes() + "09:01 é".encode()[:-1])
    said = []

    def finish():
        with open(run / orders.LOG, "ab") as log:
            log.write("é\n".encode()[1:])
        (run / ENDING).write_text(json.dumps(PAUSED))

    threading.Timer(0.1, finish).start()
    follow(run, RunStart.read(run), lambda: "running", said.append)
    assert said == ["09:01 é"]


def test_a_run_that_is_done_is_shown_and_no_site_is_asked(run, monkeypatch, capsys):
    """`resume` of a finished run greeted all sites again."""
    shown = []
    monkeypatch.setattr(remote_run, "_show_result", lambda path, as_json: shown.append((path, as_json)))
    (run / ENDING).write_text('{"state": "done", "code": 0}')
    remote_run.conduct(run, as_json=False)
    assert shown == [(run, False)]
    assert capsys.readouterr().out == f"run     {run}  is done; nothing is asked of any site\n"
    assert (run / ENDING).exists()


def test_another_wait_is_kept_in_the_order(run):
    """`resume` waited as long as the run had been told at first, and nobody could change that."""
    before = remote_run.read_order(run)
    Coordinator.open(before.federation).admit("a", fake.KEYS["s0"].public)
    assert remote_run.read_order(run, wait="24h") == replace(
        before, terms=replace(before.terms, wait_s=86400.0)
    )
    assert remote_run.read_order(run).terms.wait_s == 86400.0
    with pytest.raises(UsageError, match="E109"):
        remote_run.read_order(run, wait="soon")
    assert call("resume", str(run), "--wait", "soon").err.startswith("E109")


def test_a_run_whose_folder_was_moved_goes_on_where_it_lies_now(run, monkeypatch, capsys):
    """Its sites trained a whole run anew in the old place, which was then told as a run that had ended
    without a word."""
    (run / "sites.json").write_text(json.dumps({"run": "r1", "sites": []}))
    there = run.with_name("moved")
    run.rename(there)
    submitted = submitted_by(monkeypatch)
    remote_run.conduct(there, as_json=True)
    assert [order.path for order in submitted] == [there]
    assert Order.read(json.loads((there / ORDER_FILE).read_text())).path == there
    assert not run.exists()


def test_a_copy_of_a_run_that_is_still_there_is_not_resumed(run, monkeypatch):
    (run / "sites.json").write_text(json.dumps({"run": "r1", "sites": []}))
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    submitted = submitted_by(monkeypatch)
    with pytest.raises(
        StateError, match=r"E112 \S+/copy is a copy of \S+/runs/r, and sites take both for one run"
    ):
        remote_run.conduct(copy, as_json=True)
    assert not submitted
    (copy / "sites.json").write_text(json.dumps({"run": "r2", "sites": []}))
    remote_run.conduct(copy, as_json=True)
    assert [order.path for order in submitted] == [copy]


def submitted_by(monkeypatch) -> list[Order]:
    """The orders that are handed in from now on; the runs end at once."""
    handed_in = list[Order]()

    def submit(home, order):
        handed_in.append(order)
        return 8

    monkeypatch.setattr(
        unskew.federation.coordinator, "submission", SimpleNamespace(submit=submit), raising=False
    )
    monkeypatch.setattr(remote_run, "show", lambda *_: None)
    return handed_in


def test_a_wait_is_for_runs_over_a_network(tmp_path):
    assert call("resume", str(tmp_path), "--wait", "1h").err.startswith(
        "E109 --wait waits for sites of a run over"
    )


def test_a_process_that_is_started_again_waits_for_what_is_left(run):
    """A run whose process was killed twice waited three times as long for its sites."""
    order = remote_run.read_order(run)
    name = orders.hand_in(order)
    path = orders._path(order.federation, name)
    for age_s, left_s in ((0, 600), (200, 400), (900, 0), (-50, 600)):
        then = time.time() - age_s
        os.utime(path, (then, then))
        assert orders.read_current_order(order.federation, name).terms.wait_s == pytest.approx(left_s, abs=5)


def test_durations_are_shown_as_people_say_them():
    assert [remote_run._duration_text(s) for s in (30, 119.5, 600, 5400, 7200, 86400)] == [
        "30 s", "119.5 s", "10 min", "90 min", "2 h", "24 h",
    ]  # fmt: skip


@pytest.mark.parametrize("told", [True, False])
def test_why_a_run_ended_is_said_once(run, superlink, told):
    """Its last line was repeated below itself."""
    add(run, *["09:02:00 E206 too few sites."] * told, ending=PAUSED)
    done = call("attach", str(run))
    assert done.out.count("E206 too few sites.") == 1
    assert done.out.endswith(f"Resume with: unskew resume {run}\n")
    quiet = call("attach", str(run), "--json")
    assert quiet.out == ""  # where JSON is read
    assert quiet.err.count("E206 too few sites.") == 1
    assert quiet.err.endswith(f"Resume with: unskew resume {run}\n")
    assert quiet.code == 75
