"""The hooks `dispatch` and `starts`: what each client is sent, and where its training starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from unskew.attacks.registry import readers_lines
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.errors import UsageError
from unskew.federation.site.policy import Policy
from unskew.federation.site.study_review import check_settings
from unskew.methods import registry
from unskew.report import method_pages
from unskew.report.analysis.runs import traffic_of
from unskew.report.method_profile import Profile
from unskew.report.sections.disclosure import items
from unskew.runs import conformance, disclosure


@dataclass(frozen=True)
class Numbered(Part):
    """Sends client k its number for every weight, and once more beside them; notes what hooks are handed."""

    name: ClassVar[str] = "numbered"
    hands_on: ClassVar[str] = "their numbers"
    keeps_at_server: ClassVar[tuple[str, ...]] = ("secret",)

    def server_init(self, w, fed):
        return {"secret": torch.arange(fed.clients).float()}

    def dispatch(self, w, s, k, fed):
        return {n: torch.full_like(t, float(s["secret"][k])) for n, t in w.items()}, {
            "k": s["secret"][k].reshape(1)
        }

    def begin(self, w, c):
        return {"seen": torch.stack([t.max() for t in c.start.values()]).max() + 100 * c.down["k"][0]}

    def client_init(self, w, fed):
        return {"seen": torch.zeros(())}

    def finish(self, w, c):
        return {}, {"seen": c.round["seen"] + 0 * c.down["k"][0]}


@dataclass(frozen=True)
class Elsewhere(Part):
    """Starts at 5, wherever the received weights are, and takes no step away from there."""

    name: ClassVar[str] = "elsewhere"
    wrong: bool = False

    def starts(self, w, c):
        return {n: torch.full_like(t, 5.0) if not self.wrong else t.flatten()[:1] for n, t in w.items()}

    def grad(self, g, w, c):
        return {n: 0 * t for n, t in g.items()}

    def client_init(self, w, fed):
        return {"from": torch.zeros(())}

    def finish(self, w, c):
        return {}, {"from": torch.stack([t.max() for t in c.start.values()]).max()}


@dataclass(frozen=True)
class Another(Numbered):
    name: ClassVar[str] = "another"


def replies_of(method, lanes="8"):
    made = conformance.loop_for(method, lanes=lanes)
    start = made.down(made.begin(), 1)
    return made, start, {r.client: r for r in made.trainer.train(start, [1, 4, 5], {})}


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_each_client_is_sent_its_own_weights_and_slice(lanes):
    _, start, replies = replies_of(Method(Numbered()), lanes)
    assert {k: float(r.private["numbered"]["seen"]) for k, r in replies.items()} == {1: 101, 4: 404, 5: 505}
    assert start.down["numbered"] == {}
    assert start.to(-1) is start


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_training_starts_where_the_part_says_and_what_was_received_is_known(lanes):
    _, start, replies = replies_of(Method(Elsewhere()), lanes)
    received = float(torch.stack([t.max() for t in start.weights.values()]).max())
    for reply in replies.values():
        assert {float(t.min()) for n, t in reply.weights.items() if "running" not in n} == {5}
        assert float(reply.private["elsewhere"]["from"]) == pytest.approx(received)


def test_one_part_alone_says_what_each_client_is_sent_and_where_training_starts():
    with pytest.raises(UsageError, match="E107 numbered and another each say what each client is sent"):
        Method(Numbered(), Another())
    with pytest.raises(UsageError, match="E107 fedala and fedamp each make a client's own model; keep one"):
        registry.parse("fedala+fedamp")
    with pytest.raises(UsageError, match="E107 elsewhere and fedala each say where training starts"):
        Method(Elsewhere(), *registry.parse("fedala").parts)


def test_the_ledger_counts_what_each_client_was_sent_and_says_what_of_others_it_is():
    made, start, replies = replies_of(Method(Numbered()))
    made.ledger.broadcast(1, [1, 4], start, made.deliveries.send(start, [1, 4]))
    weights, slices = made.record.rows["ledger"]
    assert (slices["share"], slices["clients"], slices["bytes"]) == ("numbered", [1, 4], 4)
    assert weights["hands_on"] == slices["hands_on"] == "their numbers"
    assert "numbered hands on to other clients: their numbers" in "\n".join(disclosure.disclosure_lines(made))
    made.ledger.trained(1, list(replies.values()), start)
    traffic = traffic_of(made.record.rows["ledger"])
    facts = SimpleNamespace(
        is_reference=False,
        metrics={},
        traffic=traffic,
        privacy={},
        attacks={},
        path=Path("r"),
        config={},
        federation={},
        rounds=1,
    )
    (sent,) = (item for item in items(facts) if item.readers)
    assert sent.readers == "the server, and other clients, who are sent their numbers"
    assert f"weights: seen by {sent.readers};" in readers_lines(made.method, made.fed)[0]


@dataclass(frozen=True)
class Silent(Numbered):
    """Says nothing of what it hands on. None of a paper; nothing differs."""

    name: ClassVar[str] = "silent"
    hands_on: ClassVar[str] = ""


def test_every_reader_says_that_a_part_hands_on_which_dispatches_and_does_not_say_it():
    """Explain, the lines before round 1, the ledger, attacks, the method's page and a site's policy."""
    silent, words = Silent(), "what it makes for each of them"
    made = conformance.loop_for(Method(silent), lanes="8")
    try:
        start = made.down(made.begin(), 1)
        made.ledger.broadcast(1, [1, 4], start, made.deliveries.send(start, [1, 4]))
        assert [row["hands_on"] for row in made.record.rows["ledger"]] == [words, words]
        assert f"silent hands on to other clients: {words}" in "\n".join(disclosure.disclosure_lines(made))
        assert f"who are sent {words};" in readers_lines(made.method, made.fed)[0]
        assert f"The server hands on to other clients: {words}." in method_pages.method_page(
            silent, made.fed, "its defaults"
        )
        assert Profile(silent, made.fed, "").hands_on == words
        with pytest.raises(UsageError, match=rf"'silent' has the coordinator send other sites {words}"):
            check_settings(Policy(), made.method, 16, 3, False)
    finally:
        made.trainer.close()


@dataclass(frozen=True)
class Round(Part):
    """Sends the round's number for every weight."""

    name: ClassVar[str] = "round"

    def sends(self, w, c):
        return {n: 0 * t + c.t for n, t in w.items()}


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_what_leaves_is_what_it_returns_and_what_is_kept_is_what_was_trained(lanes):
    made = conformance.loop_for(Method(Round(), *registry.parse("fedbn").parts), lanes=lanes)
    replies = made.trainer.train(made.down(made.begin(), 3), [1, 2], {})
    for reply in replies:
        assert {float(t.min()) for t in reply.weights.values()} == {3}
        assert {float(t.max()) for t in reply.weights.values()} == {3}
        assert all(3 not in t for t in reply.private["kept"].values())
        assert reply.private["kept"].keys() == made.trainer.kept


@dataclass(frozen=True)
class Steps(Part):
    """Counts its steps in a leaf that begins as a private one; another is the first of a step before."""

    name: ClassVar[str] = "steps"
    leaf: str = "now"

    def shares(self, fed):
        return {name: Share((), kind="statistics", samples="client") for name in ("now", "old", "all")}

    def client_init(self, w, fed):
        return {"now": torch.zeros(())}

    def begin(self, w, c):
        return {"now": c.mine["now"], "old": -torch.ones(())}

    def carry(self, g, w, c):
        return {self.leaf: c.round["now"] + 1, "old": c.round["now"]}

    def finish(self, w, c):
        return {**c.round, "all": c.steps + c.mine["now"]}, {"now": c.round["now"]}


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_each_step_finds_what_the_last_one_left_and_private_state_stays(lanes):
    made = conformance.loop_for(Method(Steps()), lanes=lanes)
    private = {1: {"steps": {"now": torch.tensor(100.0)}}}
    replies = made.trainer.train(made.down(made.begin(), 3), [0, 1, 2, 3], private)
    # clients take different numbers of steps
    assert len({float(r.shares["steps"]["all"]) for r in replies}) > 2
    for reply in replies:
        shared = {name: float(t) for name, t in reply.shares["steps"].items()}
        assert shared["now"] == shared["all"] == shared["old"] + 1
        assert (shared["now"] > 100) == (reply.client == 1)


def test_what_begin_did_not_make_is_refused():
    made = conformance.loop_for(Method(Steps(leaf="other")), lanes="8")
    with pytest.raises(UsageError, match=r"E127 the hook `carry` of 'steps' .* returned 'other'"):
        made.trainer.train(made.down(made.begin(), 1), [0, 1], {})
