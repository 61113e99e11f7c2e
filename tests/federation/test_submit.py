"""A run is handed in to a SuperLink that may not be there yet, may refuse it, or may go away. Without Flower,
by a stand-in."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError


class Refused(Exception):
    pass


class Unavailable(Exception):
    pass


@pytest.fixture
def link(monkeypatch):
    """What the SuperLink answers, in turn, and what it was asked: `link.answers`, `link.asked`; time stands
    still."""
    seen = SimpleNamespace(answers=[], asked=[], slept=[], now=0.0)

    class SuperLink:
        def __init__(self, home):
            assert home == "home"

        def _answer(self, what):
            seen.asked.append(what)
            answer = seen.answers.pop(0) if len(seen.answers) > 1 else seen.answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        def start(self, name):
            return self._answer(("start", name))

        def status(self, number):
            return self._answer(("status", number))

        def stop(self, number):
            return self._answer(("stop", number))

    stub = ModuleType("unskew.federation.coordinator.superlink")
    stub.__dict__.update(Refused=Refused, Unavailable=Unavailable, SuperLink=SuperLink)
    monkeypatch.setitem(sys.modules, "unskew.federation.coordinator.superlink", stub)
    monkeypatch.delitem(sys.modules, "unskew.federation.coordinator.submission", raising=False)
    submit = importlib.import_module("unskew.federation.coordinator.submission")
    monkeypatch.delitem(
        sys.modules, "unskew.federation.coordinator.submission"
    )  # the next test has a stand-in of its own

    def sleep(seconds):
        seen.slept.append(seconds)
        seen.now += seconds

    monkeypatch.setattr(submit, "time", SimpleNamespace(monotonic=lambda: seen.now, sleep=sleep))
    monkeypatch.setattr(submit.orders, "hand_in", lambda order: f"name of {order}")
    seen.submit = submit
    return seen


def test_a_run_has_the_number_that_the_superlink_gives_it(link):
    link.answers = [77]
    assert link.submit.submit("home", "order") == 77
    assert link.asked == [("start", "name of order")]
    assert not link.slept


def test_a_superlink_that_starts_is_waited_for_and_handed_one_order(link):
    link.answers = [Unavailable(), Unavailable(), 5]
    assert link.submit.submit("home", "order") == 5
    assert link.asked == [("start", "name of order")] * 3
    assert link.slept == [0.5, 0.5]


def test_one_that_never_answers_is_named_after_a_while(link):
    link.answers = [Unavailable()]
    with pytest.raises(
        UsageError, match=r"^E507 the SuperLink does not answer; is `unskew serve` running\?$"
    ):
        link.submit.submit("home", "order")
    assert sum(link.slept) == link.submit.STARTING_S


def test_a_refusal_is_not_repeated(link):
    link.answers = [Refused("too many runs")]
    with pytest.raises(UsageError, match=r"^E507 the SuperLink did not accept the run: too many runs$"):
        link.submit.submit("home", "order")
    assert len(link.asked) == 1


@pytest.mark.parametrize("gone", [Refused("x"), Unavailable()])
def test_one_that_went_away_says_nothing_and_is_asked_to_stop_in_vain(link, gone):
    link.answers = [gone]
    assert link.submit.status("home", 3) == ""
    link.submit.stop("home", 3)
    assert link.asked == [("status", 3), ("stop", 3)]
    link.answers = ["running"]
    assert link.submit.status("home", 4) == "running"


def test_another_error_is_no_silence(link):
    link.answers = [ValueError("a defect")]
    for ask in (link.submit.status, link.submit.stop):
        with pytest.raises(ValueError, match="a defect"):
            ask("home", 3)
