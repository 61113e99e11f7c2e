"""Runs that ask and never begin leave little at a site, and a number that was forgotten never comes back."""

from __future__ import annotations

import os

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import begun, hello
from unskew.federation.site import approvals
from unskew.federation.site.approvals import MOST_PENDING as KEPT

MOST_ASKING = 4


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(approvals, "MOST_PENDING", MOST_ASKING)
    site = fake.sites(tmp_path / "sites", fake.federation())[998]
    site.guard.approve = "ask"
    return site


def flood(site, many: int, **changes) -> None:
    """So many runs ask, each for a study of its own, a second apart."""
    for i in range(many):
        assert hello(site, run=f"f{i}", lr=0.01 + i / 1000, **changes)["code"] == "E522"
        for path in (site.member.folder / "runs" / f"f{i}").iterdir():
            os.utime(path, (1000 + i, 1000 + i))


def kept(site, what: str) -> set[str]:
    return {path.name for path in (site.member.folder / what).iterdir()}


def test_a_site_keeps_twenty():
    assert KEPT == 20


def test_only_the_last_runs_that_ask_are_kept(site):
    """N1: every number and every study that asked left a folder and a file, without end and before any
    approval."""
    said = []
    site.say = said.append
    flood(site, MOST_ASKING + 2)
    assert kept(site, "runs") == {f"f{i}" for i in range(2, MOST_ASKING + 2)}
    assert {r.run for r in approvals.all_requests(site.member.folder)} == kept(site, "runs")
    assert "run f0 is forgotten: it never began, and 4 later ones have asked" in said


def test_one_study_under_many_numbers_is_bounded_too(site):
    for i in range(MOST_ASKING + 2):
        hello(site, run=f"f{i}")
    assert len(kept(site, "runs")) == MOST_ASKING
    (request,) = approvals.all_requests(site.member.folder)
    assert request.run == f"f{MOST_ASKING + 1}"


def test_a_number_that_was_forgotten_stands_for_nothing_else(site):
    """N1: the operator has read of a harmless study under it, and another one would be approved."""
    flood(site, MOST_ASKING + 1)
    refused = hello(site, "scaffold", run="f0")
    assert refused["code"] == "E520"
    assert (
        "run f0 had asked, and had to make room for 4 later ones that asked; start a new run"
        in refused["text"]
    )
    assert "f0" not in kept(site, "runs")


def test_runs_that_have_begun_or_were_approved_stay(site):
    hello(site)
    approvals.decide(site.member.folder, "r1", "approved")
    train = begun(site)
    flood(site, MOST_ASKING + 1)
    assert {"r1"} < kept(site, "runs")
    assert train(1)["n"] == 33
    assert "approved" in {r.state for r in approvals.all_requests(site.member.folder)}


def test_what_is_known_of_forgotten_numbers_is_bounded(site, monkeypatch):
    monkeypatch.setattr(approvals, "MOST_KNOWN", 3)
    flood(site, MOST_ASKING + 5)
    assert (site.member.folder / approvals.FORGOTTEN_FILE).read_text().split() == ["f2", "f3", "f4"]


@pytest.mark.parametrize("run", ["../x", "", None, "a/b", 5])
def test_a_number_that_is_no_name_makes_no_folder(site, run):
    folder = site.member.folder
    before = set(folder.parent.rglob("*"))
    assert hello(site, run=run)["code"] in ("E109", "E310")
    assert {p.name for p in set(folder.parent.rglob("*")) - before} <= {"troubles.json", "said.jsonl"}
