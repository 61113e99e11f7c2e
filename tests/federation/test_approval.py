"""A study that is new to a site waits for its operator, who sees what would leave."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.calling import call
from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import allow, answer, begun, hello, weights
from unskew.config import dump
from unskew.core.module_inputs import check_vocabulary
from unskew.errors import UsageError
from unskew.federation.coordinator import correspondence
from unskew.federation.coordinator.network_run import Order, Terms
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.site import approvals
from unskew.federation.site.guard import DATA_ERROR_TEXT
from unskew.federation.site.policy import POLICY_FILE
from unskew.federation.site.site import Site
from unskew.federation.site.site_folder import Finding, SiteFolder
from unskew.federation.site.site_ledger import SiteLedger
from unskew.federation.tickets import Coordinator


@pytest.fixture
def site(tmp_path):
    site = fake.sites(tmp_path / "sites", fake.federation())[998]
    site.guard.approve = "ask"
    return site


def test_a_new_study_waits_and_nothing_is_said_of_the_data(site):
    said = []
    site.say = said.append
    waiting = hello(site, "scaffold+rebafl")
    assert (waiting["code"], "hello" in waiting) == ("E522", False)
    assert "unskew site approve r1" in waiting["text"]
    (request,) = approvals.all_requests(site.member.folder)
    assert request.state == "waiting"
    for line in ("run     r1  (waiting)", "scaffold+rebafl, 3 rounds", site.member.coordinator.fingerprint):
        assert line in request.text()
    assert "rebafl/sums at most" in request.leaves
    assert said[0].startswith(
        f"a study asks for this site's data and waits for its operator\n{request.text()}"
    )
    again = hello(site, "scaffold+rebafl")  # having asked before is no approval
    assert (again["code"], "hello" in again) == ("E522", False)
    assert len(said) == 1


def test_what_is_approved_is_this_study_with_any_seed_and_no_other(site):
    folder = site.member.folder
    hello(site)
    approvals.decide(folder, "r1", "approved")
    assert "hello" in hello(site)
    assert "hello" in hello(site, run="r2", seed=5)
    assert hello(site, rounds=50, run="r3")["code"] == "E522"
    assert hello(site, "scaffold", run="r4")["code"] == "E522"
    assert hello(site, "scaffold")["code"] == "E520"
    other = fake.small("scaffold").as_dict()
    assert (
        answer(site, "setup", tree={"w": weights(site)}, settings=other, k=0, clients=1, largest=33)["code"]
        == "E520"
    )
    assert not SiteLedger.read(folder).runs


@pytest.mark.parametrize("method", ["flea", "fedmix", "fedbr"])
def test_where_samples_are_drawn_another_seed_is_another_study(site, method):
    hello(site, method)
    approvals.decide(site.member.folder, "r1", "approved")
    assert "hello" in hello(site, method, run="r2")
    assert hello(site, method, run="r3", seed=5)["code"] == "E522"


@pytest.mark.parametrize("limits", [{"least_samples": 20}, {"shares": ("weights",)}])
def test_what_the_policy_says_of_the_data_is_kept_until_the_operator_has_decided(site, limits):
    """A score is sent where there are test samples."""
    allow(site, **limits)
    assert hello(site)["code"] == "E522"
    (asks,) = approvals.all_requests(site.member.folder)
    assert f"({next(iter(limits))})" in asks.note
    approvals.decide(site.member.folder, "r1", "approved")
    assert hello(site)["code"] == "E520"


@pytest.mark.parametrize(("method", "code"), [("fedmix", "E520"), ("fedavg", None)])
def test_where_samples_are_drawn_a_site_is_one_client_in_all_runs_of_a_study(site, method, code):
    """A tenth of the samples was approved, and ten runs that name the site client 0, 1, 2 and so on took them
    all."""
    site.guard.approve = "all"
    settings = fake.small(method).as_dict()
    facts = {"tree": {"w": weights(site)}, "settings": settings, "clients": 5, "largest": 40}
    assert "ready" in answer(site, "setup", k=2, **facts)
    assert "ready" in answer(site, "setup", run="r2", k=2, **facts)
    refused = answer(site, "setup", run="r3", k=3, **facts)
    assert refused.get("code") == code
    assert "was client 2 in an earlier run" in refused.get("text", "was client 2 in an earlier run")


def test_nothing_is_said_of_a_sites_samples_before_its_operator_has_decided(site, monkeypatch):
    """A delta that is too large told how many samples the site has, to a coordinator whom nobody had
    approved."""
    pytest.importorskip("dp_accounting")
    study = {**fake.small("dpsgd").as_dict(), "method": "dpsgd(delta=0.5)"}
    refused = answer(site, "hello", settings=study)
    # or nine such questions, each answered yes or no, would tell the number itself
    assert refused["code"] == "E522"
    (asks,) = approvals.all_requests(site.member.folder)
    assert "cannot run here as it is: 'dpsgd'" in asks.leaves
    approvals.decide(site.member.folder, "r1", "approved")
    refused = answer(site, "hello", settings=study)
    assert (refused["code"], "33" in refused["text"]) == ("E108", False)
    monkeypatch.setattr("unskew.federation.site.site.forecast_settings", _of_an_unknown_word)
    assert hello(site, rounds=2, run="r2")["code"] == "E522"
    approvals.decide(site.member.folder, "r2", "refused")
    assert hello(site, rounds=2, run="r2")["code"] == "E523"
    approvals.decide(site.member.folder, "r2", "approved")
    refused = hello(site, rounds=2, run="r2")
    assert (refused["code"], refused["text"]) == ("E123", DATA_ERROR_TEXT)


def _of_an_unknown_word(*_):
    check_vocabulary(SimpleNamespace(vocabulary=10), np.array([[3, 4711]]))


RAW = "feddata(share=1.0)"
FACTS = {"k": 0, "clients": 2, "largest": 33}


def test_a_setup_that_nobody_has_greeted_asks_about_the_study_and_not_about_an_error(site):
    """With weights of a wrong shape the operator was asked about "the study cannot run here as it is", and a
    yes to that was
    kept as approval of the study: all of the raw samples then left."""
    wrong = {"w": {name: tensor[..., :1] for name, tensor in weights(site).items()}}
    settings = fake.small(RAW).as_dict()
    assert answer(site, "setup", tree=wrong, settings=settings, **FACTS)["code"] == "E522"
    (asks,) = approvals.all_requests(site.member.folder)
    assert asks.releases == "study"
    assert "feddata/x at most" in asks.text()
    assert "cannot run" not in asks.text()
    approvals.decide(site.member.folder, "r1", "approved")
    assert answer(site, "setup", tree=wrong, settings=settings, **FACTS)["code"] == "E504"
    assert answer(site, "setup", tree={"w": weights(site)}, settings=settings, **FACTS)["ready"]


@pytest.mark.parametrize("method", ["fedavg", RAW])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_yes_to_an_error_releases_its_text_and_nothing_else(site, monkeypatch, method, seed):
    with monkeypatch.context() as broken:
        broken.setattr("unskew.federation.site.site.forecast_settings", _of_an_unknown_word)
        assert hello(site, method, seed=seed)["code"] == "E522"
        (asks,) = approvals.all_requests(site.member.folder)
        assert asks.releases == "error"
        approvals.decide(site.member.folder, "r1", "approved")
        assert hello(site, method, seed=seed)["code"] == "E123"
        broken.setattr("unskew.federation.site.site.forecast_settings", _of_another)
        assert hello(site, method, seed=seed)["code"] == "E522"
    for run in ("r1", "r2"):
        assert hello(site, method, run=run, seed=seed)["code"] == "E522"
        setup = fake.small(method, seed=seed).as_dict()
        assert (
            answer(site, "setup", run=run, tree={"w": weights(site)}, settings=setup, **FACTS)["code"]
            == "E522"
        )
    assert not SiteLedger.read(site.member.folder).runs


def _of_another(*_):
    raise UsageError("E108", "another error")


def test_an_approval_is_of_the_text_that_was_shown(site):
    """With other samples at the site other numbers leave, of which its operator has not read."""
    hello(site, "feddpms(alpha=5, width=8)")
    approvals.decide(site.member.folder, "r1", "approved")
    assert "hello" in hello(site, "feddpms(alpha=5, width=8)")
    fewer = fake.data_of(fake.federation(), 4)
    again = Site(site.member, lambda: fewer, approve="ask")
    assert hello(again, "feddpms(alpha=5, width=8)")["code"] == "E522"
    states = {request.key: request.state for request in approvals.all_requests(site.member.folder)}
    assert sorted(states.values()) == ["approved", "waiting"]
    with pytest.raises(UsageError, match="E503 run r1 asks several things; name one by its digest: "):
        approvals.decide(site.member.folder, "r1", "approved")
    (waiting,) = [key for key, state in states.items() if state == "waiting"]
    approvals.decide(site.member.folder, waiting[:16], "approved")
    assert "hello" in hello(again, "feddpms(alpha=5, width=8)")
    approvals.decide(site.member.folder, "r1", "refused")
    assert {request.state for request in approvals.all_requests(site.member.folder)} == {"refused"}


REDRAWS = "\x1b[2J]\x9b2Jleaves nothing"


def test_nothing_that_a_coordinator_writes_can_redraw_the_question(site, monkeypatch):
    said = []
    site.say = said.append
    method = f"scaffold(# {REDRAWS}\n)"
    settings = fake.small("scaffold").as_dict() | {"method": method}
    assert answer(site, "hello", settings=settings)["code"] == "E522"
    monkeypatch.setattr("unskew.federation.site.site.forecast_settings", _of_another)
    assert answer(site, "hello", run="r2", settings=settings | {"lr": 0.01})["code"] == "E522"
    for text in (*said, *(request.text() for request in approvals.all_requests(site.member.folder))):
        assert all(line.isprintable() for line in text.split("\n"))
    foreign = approvals.Request(
        "s", *[f"{REDRAWS}\n"] * 2, 3, f"{REDRAWS}\n", f"leaves\n{REDRAWS}", 1.0, name=REDRAWS
    )
    lines = replace(foreign, trains=f"{REDRAWS}\n", note=f"{REDRAWS}\n").text().split("\n")
    assert len(lines) == 9
    assert all(line.isprintable() for line in lines)


def test_an_operator_can_refuse_before_a_run_and_while_it_goes_on(site):
    folder = site.member.folder
    hello(site)
    approvals.decide(folder, "r1", "refused")
    assert hello(site)["code"] == "E523"
    site.guard.approve = "all"
    assert hello(site)["code"] == "E523"
    approvals.decide(folder, "r1", "approved")
    train = begun(site)
    assert train(1)["n"] == 33
    approvals.decide(folder, "r1", "refused")
    assert train(2)["code"] == "E523"


def test_the_coordinator_reads_where_a_run_waits_and_goes_on_when_it_is_approved(tmp_path, monkeypatch):
    monkeypatch.setattr(correspondence, "AGAIN_S", 0.1)
    sites = fake.sites(tmp_path / "sites", fake.federation())
    folder = sites[999].member.folder
    sites[999].guard.approve = "ask"

    def operator() -> None:
        while not (requests := approvals.all_requests(folder)):
            time.sleep(0.01)
        approvals.decide(folder, requests[0].run, "approved")

    threading.Thread(target=operator, daemon=True).start()
    loop, _, said = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg"), wait_s=60)
    assert any(text.startswith("4/5 sites are there; waiting for approval at s1 until") for text in said)
    assert sum("E522 s1: the study waits for the site's operator" in line for line in said) == 1
    assert len(loop.trainer.sites.hellos) == 5


@pytest.mark.flower
def test_the_commands_of_a_sites_operator(tmp_path):
    ticket = (
        Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"]).folder / "tickets" / "a.ticket"
    )
    assert call("join", str(ticket), cwd=tmp_path).code == 0
    assert (tmp_path / "site" / POLICY_FILE).stat().st_mode & 0o777 == 0o600
    shown = json.loads(call("site", "policy", "--json", cwd=tmp_path).out)
    assert shown["shares"] == ["weights", "sums", "statistics"]
    assert "is not overwritten" in call("site", "policy", "--default", cwd=tmp_path).err
    (tmp_path / "site" / POLICY_FILE).unlink()
    assert call("site", "policy", cwd=tmp_path).err.startswith("E521")
    assert call("site", "policy", "--default", cwd=tmp_path).code == 0
    assert call("site", "approve", cwd=tmp_path).out == "No study has asked for this site's data.\n"
    assert call("site", "approve", "r1", cwd=tmp_path).err.startswith("E503")
    assert call("site", "refuse", "r1", cwd=tmp_path).err.startswith("E503")
    for command in (["approve"], ["refuse", "r1"], ["policy"], ["watch"]):
        elsewhere = call("site", *command, "--folder", "nowhere", cwd=tmp_path)
        assert (elsewhere.code, "nowhere is not a site's folder" in elsewhere.err) == (2, True)


MAKES = (
    "open('mark', 'w')\nfrom torch import nn\ndef make(shape, n):\n    return nn.Sequential(nn.Flatten(),"
    " nn.Linear(64, n))\n"
)


def test_a_look_at_a_study_imports_no_file_that_the_study_names(tmp_path, monkeypatch):
    """`site check --study`, which one runs before one trusts anybody, ran the Python file that the study
    called its model."""
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:1", ["a"])
    SiteFolder.make(tmp_path / "site", home.ticket("a"))
    np.savez(tmp_path / "d.npz", x=np.random.rand(40, 1, 8, 8).astype(np.float32), y=np.arange(40) % 2)
    (tmp_path / "evil.py").write_text(MAKES)
    (tmp_path / "mine.py").write_text(MAKES.replace("mark", "ours"))
    (tmp_path / "study.yaml").write_text(dump(study_settings(fake.small("fedavg", model="evil.py:make"))))
    monkeypatch.setattr(
        "unskew.federation.site.site_folder.check_site", lambda *_, **__: [Finding("data", True, "")]
    )
    look = ("site", "check", "--data", "d.npz", "--study", "study.yaml")
    refused = call(*look, cwd=tmp_path)
    assert (refused.code, refused.err[:4]) == (2, "E506"), refused.text
    own = call(*look, "--model", "mine.py:make", cwd=tmp_path)
    assert own.code == 0, own.text
    assert ((tmp_path / "mark").exists(), (tmp_path / "ours").exists()) == (False, True)
    assert "--model mine.py:make" in own.out.splitlines()[-1]


def test_a_run_on_sites_imports_no_file_at_the_coordinator_that_a_document_names(tmp_path, monkeypatch):
    """The process that conducts it imports whatever has been ordered."""
    home = Coordinator.make(tmp_path / "federations" / "lung", "lung", "127.0.0.1:1", ["a"])
    (tmp_path / "evil.py").write_text(MAKES)
    asked = study_settings(fake.small("fedavg", model="evil.py:make"))
    (tmp_path / "study.yaml").write_text(dump(asked))
    refused = call("run", "study.yaml", "--on", "lung", "--name", "r", cwd=tmp_path)
    assert (refused.code, refused.err[:4], (tmp_path / "runs").exists()) == (2, "E506", False), refused.text
    (tmp_path / "f").mkdir()
    Order(tmp_path / "f", home.folder, asked.as_dict(), Terms()).write()
    refused = call("resume", "f", cwd=tmp_path)
    assert (refused.code, refused.err[:4]) == (2, "E506"), refused.text
    for words in (("run", "study.yaml", "--on", "lung", "--name", "r"), ("resume", "f")):
        assert "E506" not in call(*words, "--model", "evil.py:make", cwd=tmp_path).text


def test_what_the_operator_approves_names_the_run_the_training_and_all_that_leaves(site):
    settings = fake.small("fedavg+clip_median", epochs=2, lr=0.05, class_weights="0,0,1").as_dict()
    answer(site, "hello", settings=settings, name="lung-2")
    (request,) = approvals.all_requests(site.member.folder)
    lines = request.text().splitlines()
    assert lines[1] == "name    lung-2, as the coordinator calls it"
    assert lines[3] == "method  fedavg+clip_median, 3 rounds"
    assert all(piece in lines[4] for piece in (settings["model"], "2 epochs", "rate 0.05", "0.0,0.0,1.0"))
    leaves = [line.strip() for line in lines[5:]]
    assert leaves[0].startswith("leaves each client  weights ")
    assert "number of training samples, a round (read: each)" in leaves
    assert "mean training loss, a round (read: each)" in leaves
    assert any(line.startswith("scores on this site's own test samples: accuracy") for line in leaves)
    assert any(line.startswith("numbers of training and test samples, shape, class names") for line in leaves)
