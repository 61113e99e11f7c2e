"""A run is handed in, conducted, followed, left and resumed, and its folder says how it ended."""

from __future__ import annotations

import json
import shutil
import threading
from types import SimpleNamespace

import pytest

import unskew.federation.coordinator
from tests.cli.calling import call
from tests.federation import fake
from unskew.cli import remote_run
from unskew.errors import Paused, StateError, UnskewError, UsageError
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.network_run import conduct_order
from unskew.federation.coordinator.orders import ENDING, LOG, ORDER_FILE, Order, RunStart, Terms, follow
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.tickets import Coordinator
from unskew.records.run_lock import RunLock
from unskew.system import disk


class Ending:
    """A Channel that ends the process in the middle of an exchange."""

    def __init__(self, error: BaseException):
        self.error = error

    def nodes(self):
        raise self.error

    def ask(self, requests, kind, t, deadline_s, most):
        raise NotImplementedError


@pytest.fixture
def order(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"])
    settings = study_settings(fake.small("fedavg")).as_dict()
    return Order(tmp_path / "run", home.folder, settings, Terms(deadline_s=0.1, wait_s=0.1))


@pytest.mark.parametrize(
    ("error", "state", "code", "text"),
    [
        (Paused("E206", "too few."), "stopped", 75, "E206 too few."),
        (
            UnskewError("E507", "the run was ended at the server."),
            "stopped",
            2,
            "E507 the run was ended at the server.",
        ),
        (SystemExit(1), "stopped", 2, "E507 the run ended on request"),
        (KeyboardInterrupt(), "stopped", 2, "E507 the run ended on request"),
        (RuntimeError("why"), "failed", 1, "RuntimeError: why"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else "",
)
def test_every_ending_is_written_down(order, error, state, code, text):
    if isinstance(error, UnskewError):
        conduct_order(Ending(error), order)
    else:
        with pytest.raises(type(error)):
            conduct_order(Ending(error), order)
    ending = json.loads((order.path / "ending.json").read_text())
    assert (ending["state"], ending["code"]) == (state, code)
    assert ending["text"].startswith(text)
    assert (f"Resume with: unskew resume {order.path}" in ending["text"]) == text.startswith("E507")
    assert text in (order.path / "server.log").read_text()


@pytest.fixture
def run(tmp_path):
    """The folder of a run that was started as Flower's number 7, after an earlier process had written a
    line."""
    home = Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:9", ["a"])
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
    monkeypatch.setattr(unskew.federation.coordinator, "superlink", stub, raising=False)
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
    add(run, "09:01:00 round 1: 3/3 sites")
    later = threading.Timer(0.2, add, (run, "09:02:00 round 2: 3/3 sites"), {"ending": PAUSED})
    later.start()
    done = call("attach", str(run))
    assert done.out.splitlines()[:2] == ["09:01:00 round 1: 3/3 sites", "09:02:00 round 2: 3/3 sites"]
    assert f"Resume with: unskew resume {run}" in done.out
    assert (done.code, superlink.calls) == (75, [])


def test_leaving_a_run_does_not_end_it(run, superlink, monkeypatch, capsys):

    def interrupted(text):
        raise KeyboardInterrupt

    add(run, "09:01:00 round 1: 3/3 sites")
    monkeypatch.setattr(
        remote_run, "print_text", lambda text: interrupted(text) if text[0] == "0" else print(text)
    )
    with pytest.raises(KeyboardInterrupt):
        remote_run.attach(run, stop=False, as_json=False)
    assert superlink.calls == []
    assert f"unskew attach {run}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda run: (run / orders.STARTED_FILE).unlink(), "E117"),
        (lambda run: (run / orders.STARTED_FILE).write_text("{"), "E201"),
    ],
)
def test_what_is_no_such_run_is_refused_in_a_sentence(run, superlink, prepare, code):
    prepare(run)
    done = call("attach", str(run))
    assert (done.code, done.err[:4]) == (2, code)


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
        unskew.federation.coordinator, "superlink", SimpleNamespace(submit=submit), raising=False
    )
    monkeypatch.setattr(remote_run, "show", lambda *_: None)
    return handed_in


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


def test_a_run_is_followed_while_it_goes_on_and_not_when_its_process_is_gone(tmp_path):
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
