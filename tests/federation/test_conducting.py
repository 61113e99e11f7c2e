"""However a run's process ends, its folder says how, in the words and with the exit code of that ending."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from tests.federation import fake
from tests.federation.test_bits import simulated
from unskew.errors import Paused, StateError, UnskewError
from unskew.federation.coordinator.network_run import conduct_order, round_line
from unskew.federation.coordinator.orders import Order, Terms
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.site.site_folder import site_lock
from unskew.federation.tickets import Coordinator
from unskew.records.checkpoints import digest
from unskew.round.loop import RoundSummary
from unskew.tasks.task import Regression


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
        (SystemExit(1), "stopped", 2, "E507 the run's process was told to end"),
        (KeyboardInterrupt(), "stopped", 2, "E507 Flower's server has ended the run"),
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


def test_a_run_that_a_jump_of_the_clock_has_ended_says_so_and_is_resumed_to_the_same_bits(tmp_path):
    """Flower's server takes a run for dead when its clock jumps ahead, and Flower's client then interrupts
    the run's process."""
    names = list(fake.KEYS)[: len(fake.SIZES)]
    home, by_node = (
        Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", names),
        fake.sites(tmp_path, fake.federation()),
    )
    for site in by_node.values():
        home.admit(site.member.name, fake.KEYS[site.member.name].public)
        site.member = replace(site.member, coordinator=home.key.public)
    order = Order(
        tmp_path / "run",
        home.folder,
        study_settings(fake.small("fedavg", rounds=2)).as_dict(),
        Terms(deadline_s=1, wait_s=1),
    )

    def interrupt(site, asked, honest):
        if '"kind": "train"' in asked.text and '"t": 2' in asked.text:
            raise KeyboardInterrupt
        return honest

    with pytest.raises(KeyboardInterrupt):
        conduct_order(fake.Direct(by_node, interrupt), order)
    text = json.loads((order.path / "ending.json").read_text())["text"]
    assert "somebody has stopped it, or this machine's clock has jumped" in text
    assert text.endswith(f"Resume with: unskew resume {order.path}")
    conduct_order(fake.Direct(by_node), order)
    assert json.loads((order.path / "ending.json").read_text())["state"] == "done"
    assert f"Resuming {order.path} from round 1 of 2." in (order.path / "server.log").read_text()
    assert digest(load_file(order.path / "model.safetensors")) == simulated("fedavg", rounds=2).digest


def test_a_round_is_told_with_who_counted_and_what_was_scored():
    """A coordinator read of a run over an hour that rounds passed; what they reached stood in its report
    alone."""

    def line(done: RoundSummary, scores: dict[tuple[str, str], tuple[int, float]]) -> str:
        record = SimpleNamespace(latest=lambda *which: scores.get(which))
        return round_line(done, SimpleNamespace(record=record, fed=SimpleNamespace(task=Regression())))  # type: ignore[arg-type]

    scores = {("global", "rmse"): (2, 57.25), ("global@client", "worst"): (1, 61.0)}
    told = "round 2: 4/5 sites, 1 dropped, 0.5 s  global  57.25  after round 1: worst     61"
    assert line(RoundSummary(2, 5, 4, 1, 0.52, 0.1), scores) == told
    assert line(RoundSummary(3, 5, 5, 0, 1.0, 0.1), {}) == "round 3: 5/5 sites, 1.0 s"


def test_an_order_survives_its_file(order):
    assert Order.read(json.loads(json.dumps(order.as_json()))) == order


def test_nobody_waits_for_a_site_that_is_not_admitted(tmp_path, monkeypatch):
    """A site whose key was never admitted, or was revoked, held up every run for the whole of --wait."""
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a", "b", "c"])
    monkeypatch.setattr(Coordinator, "admitted", lambda home: {"a": None, "c": None})
    asked = []
    monkeypatch.setattr(
        "unskew.federation.coordinator.network_run.conduct",
        lambda path, settings, contact, *rest: asked.append(contact),
    )
    order = Order(tmp_path / "run", home.folder, study_settings(fake.small("fedavg")).as_dict(), Terms())
    conduct_order(Ending(RuntimeError()), order)
    assert asked[0].sites == ("a", "c")
    assert "b is not admitted, and nobody waits for it." in (order.path / "server.log").read_text()


def test_a_second_process_for_a_site_is_refused(tmp_path):
    told = r"E110 site b is run already, by pid \d+"
    with site_lock(tmp_path, "b"), pytest.raises(StateError, match=told), site_lock(tmp_path, "b"):
        pass
    with site_lock(tmp_path, "b"):
        pass
