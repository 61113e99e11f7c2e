"""What the terminal of a site says of each exchange, and of what was decided."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import SERIAL, allow, hello, weights
from unskew.federation.programs import RareSay
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.protocol.wire_format import seal
from unskew.federation.site import approvals, terminal
from unskew.federation.site import processes as site_processes


@pytest.fixture
def site(tmp_path):
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def told(site, kind: str, t: int = 0, tree=None, **header) -> str:
    """What the operator reads when the coordinator asks for this."""
    fixed = {"run": "r1", "serial": next(SERIAL), "site": site.member.name, "kind": kind, "t": t}
    answer = site.answer(seal(fixed | header, tree or {}, fake.COORDINATOR))
    return terminal.terminal_line(site.member.folder, answer)


def test_every_exchange_is_a_line(site):
    """The terminal was silent from the approval to the end of a run."""
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


def test_a_trip_is_a_line_and_so_is_a_refusal(site):
    settings, first = fake.small("flea").as_dict(), {"w": weights(site)}
    begins = told(site, "setup", tree=first, settings=settings, k=0, clients=1, largest=33)
    assert begins == "run r1 begins: flea, 3 rounds", (
        "a method that asks sites for something is not called fedavg"
    )
    trip = told(site, "visit", 1, first, part="flea", trip=0, lr=0.05)
    assert trip == "run r1, after round 1 of 3: sent what the method shares beside the weights"
    allow(site, most_rounds=1)
    refused = told(site, "train", 1, first, lr=0.05)
    assert refused.startswith(
        "run r1 was not answered: E520 the site's policy does not allow it: the study takes 3"
    )
    assert told(site, "train", 1, first, **{"name": 5}).startswith("a request was not answered: E310")


def test_a_loss_that_is_withheld_is_not_told_as_0(site):
    """With `dpsgd` the terminal said that the mean loss was 0."""
    settings, first = fake.small("dpsgd(noise_multiplier=1.0)").as_dict(), {"w": weights(site)}
    told(site, "setup", tree=first, settings=settings, k=0, clients=1, largest=33)
    assert told(site, "train", 1, first, lr=0.05) == "run r1, round 1 of 3: trained on 33 samples"


def test_what_waits_or_mends_itself_is_said_elsewhere(site):
    site.guard.approve = "ask"
    assert told(site, "hello", settings=fake.small("fedavg").as_dict()) == ""
    assert told(site, "train", 1, {"w": weights(site)}, lr=0.05) == ""


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "{", '{"kind": "train"}', '{"kind": "train", "run": {}, "n": "x"}', "9" * 9999]
)
def test_nothing_that_is_told_stops_an_answer(site, text):
    assert terminal.terminal_line(site.member.folder, SignedMessage(text, b"", b"")) == ""
    assert (
        terminal.terminal_line(Path("/nowhere"), SignedMessage('{"kind": "setup", "run": "r1"}', b"", b""))
        == ""
    )


def test_a_refusal_cannot_move_the_cursor(site):
    """N6: what a coordinator has written into a request may stand in a refusal."""
    answer = SignedMessage(
        json.dumps({"code": "E310", "text": "\x1b[2J\nE999 forged", "run": "r1"}), b"", b""
    )
    assert (
        terminal.terminal_line(site.member.folder, answer)
        == r"run r1 was not answered: E310 \x1b[2J\nE999 forged"
    )


def test_the_line_goes_to_the_terminal_and_the_answer_to_the_server(site, monkeypatch):
    said, answer = [], SignedMessage('{"kind": "hello", "run": "r1"}', b"", b"")
    (site.member.folder / "spent.json").write_text("{}")
    joined = SimpleNamespace(folder=site.member.folder, ticket=SimpleNamespace(site="s2"))
    processes = site_processes.SiteProcesses(joined, "data", say=said.append)
    monkeypatch.setattr(site_processes, "ask_worker", lambda path, folder, request, within_s: answer)
    assert processes._answer(Path("socket"), answer, 5.0) is answer
    assert said == ["run r1 was told how many samples this site holds, their shape and the classes"]


def test_every_loss_of_the_connection_is_said_and_every_return():
    """Two losses in one minute were told once."""
    said: list[str] = []
    say = RareSay(said.append, always=terminal.CONNECTED)
    for text in (
        "lost",
        "lost",
        f"{terminal.CONNECTED} again after 3 s",
        "lost",
        f"{terminal.CONNECTED} again after 3 s",
    ):
        say(text)
    assert said == [
        "lost",
        f"{terminal.CONNECTED} again after 3 s",
        "lost",
        f"{terminal.CONNECTED} again after 3 s",
    ]


def test_what_became_of_a_study_is_said_once(site):
    site.guard.approve, folder, said = "ask", site.member.folder, []
    for number in ("r1", "r2", "r3"):
        hello(site, run=number, lr=0.01 * int(number[1]))
    looks = iter([
        lambda: approvals.decide(folder, "r1", "approved"), lambda: approvals.decide(folder, "r2", "refused"),
        lambda: approvals.forget(folder, "r3"), lambda: None,
    ])  # fmt: skip

    def pause(_: float) -> None:
        step = next(looks, None)
        if step is None:
            raise StopIteration
        step()

    with pytest.raises(StopIteration):
        approvals.announce(folder, said.append, pause)
    assert said[-3:] == [
        "approved: run r1 begins when the coordinator asks again (fedavg, 3 rounds)",
        "refused: run r2 gets nothing from this site (fedavg, 3 rounds)",
        "run r3 waits no more: later runs have asked, and nobody had decided about it",
    ]
    assert len(said) == 9


def test_what_the_operator_approves_names_the_run_the_training_and_all_that_leaves(site):
    """It named `clip_median` alone, neither the run nor the study, and no scores, loss or counts."""
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


@pytest.mark.parametrize("name", ["a\nb", "x" * 65, 5, "\x1b[2J"])
def test_a_name_that_no_run_can_have_is_refused(site, name):
    """N6: it is shown to the site's operator."""
    assert "the request's 'name'" in told(site, "hello", settings=fake.small("fedavg").as_dict(), name=name)
