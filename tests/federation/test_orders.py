"""A run over a network is conducted, moved and copied, and its folder says how it ended."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.federation import fake
from unskew.cli import remote_run
from unskew.errors import Paused, StateError, Terminated, UnskewError
from unskew.federation.coordinator import network_run
from unskew.federation.coordinator.network_run import Order, Terms, conduct_order
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.tickets import Coordinator
from unskew.records.run_lock import RunLock


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
        (UnskewError("E507", "the run was ended."), "stopped", 2, "E507 the run was ended."),
        (Terminated(), "stopped", 2, "E507 the run ended on request"),
        (KeyboardInterrupt(), "stopped", 2, "E507 the run ended on request"),
        (RuntimeError("why"), "failed", 1, "RuntimeError: why"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else "",
)
def test_every_ending_is_written_down(order, error, state, code, text):
    with pytest.raises(type(error)) as raised:
        conduct_order(Ending(error), order, lambda _: None)
    ending = json.loads((order.path / "ending.json").read_text())
    assert (ending["state"], ending["code"]) == (state, code)
    assert ending["text"].startswith(text)
    assert (f"Resume with: unskew resume {order.path}" in ending["text"]) == (state == "stopped")
    assert text in (order.path / "server.log").read_text()
    if isinstance(error, UnskewError):
        assert str(raised.value) == ending["text"]


@pytest.fixture
def run(tmp_path):
    """The folder of a run that has begun."""
    home = Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:9", ["a"])
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    Order(run, home.folder, fake.small("fedavg").as_dict(), Terms()).write()
    (run / "sites.json").write_text(json.dumps({"run": "r1", "sites": []}))
    return run


@pytest.fixture
def conducted(monkeypatch) -> list[Order]:
    """The orders that are conducted from now on; the runs end at once."""
    orders = list[Order]()
    mailbox = SimpleNamespace(run_mailbox=nullcontext)
    monkeypatch.setitem(sys.modules, "unskew.federation.coordinator.mailbox", mailbox)
    monkeypatch.setattr(network_run, "conduct_order", lambda mailbox, order, say: orders.append(order))
    monkeypatch.setattr(remote_run, "_show_result", lambda path, as_json: None)
    return orders


def test_a_run_whose_folder_was_moved_goes_on_where_it_lies_now(run, conducted):
    """Its sites trained a whole run anew in the old place, which was then told as a run that had ended
    without a word."""
    there = run.with_name("moved")
    run.rename(there)
    remote_run.conduct(there, as_json=True)
    assert [order.path for order in conducted] == [there]
    assert Order.read(there).path == there
    assert not run.exists()


def test_a_copy_of_a_run_that_is_still_there_is_not_resumed(run, conducted):
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    with pytest.raises(
        StateError, match=r"E112 \S+/copy is a copy of \S+/runs/r, and sites take both for one run"
    ):
        remote_run.conduct(copy, as_json=True)
    assert not conducted
    (copy / "sites.json").write_text(json.dumps({"run": "r2", "sites": []}))
    remote_run.conduct(copy, as_json=True)
    assert [order.path for order in conducted] == [copy]


def test_a_run_that_another_process_conducts_is_left_alone(run, conducted):
    with RunLock(run), pytest.raises(StateError, match=r"E110 .* in use by pid \d+ .*: unskew watch"):
        remote_run.conduct(run, as_json=True)
    assert not conducted
