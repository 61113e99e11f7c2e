"""The terminal of a site: what it says of each exchange, and how an operator decides there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import SERIAL, weights
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.protocol.wire_format import seal
from unskew.federation.site import approvals, processes


def wait(folder, study: str, run: str) -> None:
    approvals.bind(folder, run, study)
    approvals.ask(
        folder, approvals.Request(study, run, "fedavg", 3, "somebody", f"leaves of {study}", time.time())
    )


class Keyboard:
    """Types these lines one after the other; what comes before a question is thrown away by it. A callable is
    an event."""

    def __init__(self, *lines):
        self.lines, self.left, self.forgot = list(lines), len(lines), 0

    def line(self, within_s: float) -> str | None:
        self.left -= 1
        item = self.lines.pop(0)
        return item() if callable(item) else item

    def forget(self) -> None:
        self.forgot += 1


def decide(folder, *lines) -> list[str]:
    said: list[str] = []
    keyboard = Keyboard(*lines)
    approvals.watch(folder, said.append, keyboard, lambda: not keyboard.lines)
    return said


def state(folder, study: str) -> str | None:
    return next((request.state for request in approvals.all_requests(folder) if request.study == study), None)


def test_a_study_is_shown_and_decided_with_one_word(tmp_path):
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, "  YES \n")
    assert "leaves of s1" in said[0]
    assert said[-1] == "approved  r1"
    assert state(tmp_path, "s1") == "approved"
    wait(tmp_path, "s2", "r2")
    assert decide(tmp_path, "no\n")[-1] == "refused  r2"
    assert state(tmp_path, "s2") == "refused"


def test_an_answer_concerns_the_study_that_was_shown_and_no_other(tmp_path):
    """A coordinator sends a second study while the operator still reads the first."""
    wait(tmp_path, "s1", "r1")

    def second() -> str:
        wait(tmp_path, "s2", "r2")
        return "yes\n"

    said = decide(tmp_path, second)
    assert (state(tmp_path, "s1"), state(tmp_path, "s2")) == ("approved", "waiting")
    assert not any("leaves of s2" in text for text in said)
    said = decide(tmp_path, "no\n")
    assert "leaves of s2" in said[0]


@pytest.mark.parametrize("typed", ["y\n", "\n", "yes please\n", "approve\n", "yes\x1b\n", "ja\n", "no yes\n"])
def test_nothing_but_the_whole_word_decides(tmp_path, typed):
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, typed)
    assert said[-1] == "type yes or no, and Enter"
    assert state(tmp_path, "s1") == "waiting"


def test_what_was_typed_before_the_question_is_thrown_away(tmp_path):
    """Somebody has typed `yes` for something else, or twice."""
    keyboard = Keyboard("yes\n", lambda: wait(tmp_path, "s1", "r1"), None, None)
    approvals.watch(tmp_path, lambda _: None, keyboard, lambda: not keyboard.lines)
    assert (state(tmp_path, "s1"), keyboard.forgot) == ("waiting", 1)


def test_a_study_that_was_decided_elsewhere_is_not_asked_about_any_more(tmp_path):
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, lambda: approvals.decide(tmp_path, "r1", "refused") and None, "yes\n")
    assert state(tmp_path, "s1") == "refused"
    assert len([text for text in said if "asks for" in text]) == 1


@pytest.fixture
def site(tmp_path):
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def told(site, kind: str, t: int = 0, tree=None, **header) -> str:
    """What the operator reads when the coordinator asks for this."""
    fixed = {"run": "r1", "serial": next(SERIAL), "site": site.member.name, "kind": kind, "t": t}
    answer = site.answer(seal(fixed | header, tree or {}, fake.COORDINATOR))
    return processes.terminal_line(site.member.folder, answer)


def test_every_exchange_is_a_line(site):
    settings, first = fake.small("fedavg+clip_median", rounds=2).as_dict(), {"w": weights(site)}
    assert (
        told(site, "hello", settings=settings)
        == "run r1 was told how many samples this site holds, their shape and the classes"
    )
    begins = told(site, "setup", tree=first, settings=settings, k=0, clients=1, largest=33)
    assert begins == "run r1 begins: fedavg+clip_median, 2 rounds"
    trained = told(site, "train", 1, first, lr=0.05)
    assert trained.startswith("run r1, round 1 of 2: trained on 33 samples, mean loss ")
    assert (
        told(site, "score", 1, first, lr=0.05) == "run r1, round 1 of 2: scored on this site's test samples"
    )
    assert (
        told(site, "score", 2, first, lr=0.05)
        == "run r1 is over: round 2 of 2 scored, 0.2 MB have left in all"
    )


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "{", '{"kind": "train"}', '{"kind": "train", "run": {}, "n": "x"}', "9" * 9999]
)
def test_nothing_that_is_told_stops_an_answer(site, text):
    assert processes.terminal_line(site.member.folder, SignedMessage(text, b"", b"")) == ""
    assert (
        processes.terminal_line(Path("/nowhere"), SignedMessage('{"kind": "setup", "run": "r1"}', b"", b""))
        == ""
    )


def test_the_operator_reads_of_which_classes_the_samples_train(site):
    site.guard.approve = "ask"
    told(site, "hello", settings=fake.small("fedavg", class_weights="0,0,1").as_dict())
    (request,) = approvals.all_requests(site.member.folder)
    assert request.trains.endswith(", weights of the classes 0.0,0.0,1.0")


def test_what_the_operator_approves_names_the_run_the_training_and_all_that_leaves(site):
    site.guard.approve = "ask"
    settings = fake.small("fedavg+clip_median", epochs=2, lr=0.05).as_dict()
    told(site, "hello", settings=settings, name="lung-2")
    (request,) = approvals.all_requests(site.member.folder)
    lines = request.text().splitlines()
    assert lines[1] == "name    lung-2, as the coordinator calls it"
    assert lines[3:5] == [
        "method  fedavg+clip_median, 3 rounds",
        f"trains  {settings['model']}, 2 epochs a round, batches of {settings['batch']}, learning rate 0.05",
    ]
    leaves = [line.strip() for line in lines[5:]]
    assert leaves[0].startswith("leaves each client  weights ")
    assert "number of training samples, a round (read: each)" in leaves
    assert "mean training loss, a round (read: each)" in leaves
    assert any(line.startswith("scores on this site's own test samples: accuracy") for line in leaves)
    once = (
        "numbers of training and test samples, shape, class names, whether samples look unscaled, versions,"
        " once (read: each)"
    )
    assert once in leaves
    tells = next(line for line in leaves if line.startswith("what it tells"))
    assert "weights: seen by the server" in tells
    assert "not measured (measure it: unskew attack RUN gradient" in tells
