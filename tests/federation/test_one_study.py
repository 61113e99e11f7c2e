"""A run's number stands for one study, set up in one way: whatever else is asked under it takes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import allow, answer, begun, hello, weights
from unskew.errors import UsageError
from unskew.federation.site import approvals
from unskew.federation.site.site import Site
from unskew.federation.site.site_ledger import AnsweredRequest, SiteLedger

ALL_SAMPLES = "feddata(share=1.0)"
FACTS = {"k": 0, "clients": 1, "largest": 33}
VISIT = {"part": "feddata", "trip": 0, "lr": 0.05}


@pytest.fixture
def site(tmp_path):
    """A site whose operator allows everything."""
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def setup(site, method: str, **facts) -> dict:
    settings = fake.small(method).as_dict()
    return answer(site, "setup", tree={"w": weights(site)}, settings=settings, **(FACTS | facts))


def test_a_refused_setup_leaves_nothing_that_answers(site):
    """N1: a refused study stayed warm under the number of an approved one, and the next request took every
    sample."""
    site.guard.approve = "ask"
    hello(site)
    approvals.decide(site.member.folder, "r1", "approved")
    train = begun(site)
    assert setup(site, ALL_SAMPLES)["code"] == "E520"
    assert answer(site, "visit", **VISIT)["code"] == "E310"  # plain averaging has no such Part
    assert train(1)["n"] == 33
    assert SiteLedger.read(site.member.folder).runs["r1"].method == "fedavg"


def test_a_begun_number_takes_no_other_study_even_where_everything_is_approved(site):
    """N1: neither the approval nor the budget was counted for a second study under the number of the
    first."""
    begun(site)
    assert "run r1 began with another study" in hello(site, ALL_SAMPLES)["text"]
    assert "run r1 began with another study" in setup(site, ALL_SAMPLES)["text"]


def test_what_is_warm_or_was_stored_is_held_against_the_study_that_began(site):
    """N1: the number alone was looked at, not what is built for it."""
    begun(site)
    path, other = site.member.folder / "runs" / "r1" / "setup.safetensors", fake.small(ALL_SAMPLES).as_dict()
    site._folder(_Of("r1")).write_setup({"w": weights(site)}, FACTS | {"settings": other}, site.data)
    assert path.exists()
    restarted = Site(site.member, site.load, approve="all")
    assert "began with another study" in answer(restarted, "visit", **VISIT)["text"]
    assert restarted._run is None
    number, _, run = site._run
    site._run = number, "another", run
    assert "began with another study" in answer(site, "visit", **VISIT)["text"]


class _Of:
    """A request of a run, for its folder."""

    def __init__(self, run: str):
        self.header = {"run": run}


@pytest.mark.parametrize("branch", ["shares", "early"])
def test_nothing_leaves_that_the_study_has_not_declared(site, branch):
    """N1: a last line before an answer goes out, whoever computed it."""
    begun(site)
    undeclared = {branch: {"feddata": {"x": torch.zeros(3)}}}
    with pytest.raises(UsageError, match=r"E520 .*'feddata/x' is not among what the study"):
        site.guard.note("r1", AnsweredRequest("visit", 0), undeclared, {})
    assert SiteLedger.read(site.member.folder).runs["r1"].bytes == 0
    site.guard.note(
        "r1",
        AnsweredRequest("train", 1),
        {"w": {"a": torch.zeros(3)}, "score": {"global": torch.zeros(3)}},
        {},
    )


@pytest.mark.parametrize("other", [{"k": 1, "clients": 2}, {"clients": 2}, {"largest": 34}])
def test_a_run_is_set_up_in_one_way(site, other):
    """N1: an approved method drew other averages of samples whenever it was set up as another client, until
    all were known."""
    allow(site)
    assert setup(site, "fedmix(group=7)")["ready"]
    assert setup(site, "fedmix(group=7)")["ready"]  # as a server does after a crash
    assert "as another client" in setup(site, "fedmix(group=7)", **other)["text"]
    assert answer(site, "visit", part="fedmix", trip=0, lr=0.05)["n"] == 33


def test_a_number_that_waits_cannot_be_given_to_another_study(site):
    """N1: the operator read of one study, and the same number asked again with another, which was
    approved."""
    site.guard.approve, folder = "ask", site.member.folder
    assert hello(site)["code"] == "E522"
    assert "run r1 has asked with another study" in hello(site, ALL_SAMPLES)["text"]
    hello(site, run="r2")  # asks for the same, so that the study's file names this run now
    hello(site, ALL_SAMPLES, run="r1x")
    approved = approvals.decide(folder, "r1", "approved")
    assert (approved.run, approved.method) == ("r1", "fedavg")
    assert "hello" in hello(site)
    assert hello(site, ALL_SAMPLES, run="r1x")["code"] == "E522"


def test_every_study_that_waits_is_announced(site):
    """N1: a study was not announced because its run had been, with another study."""
    site.guard.approve, folder, said = "ask", site.member.folder, []
    hello(site)

    def wait(_: float) -> None:
        if len(said) > 2:
            raise StopIteration
        (request,) = approvals.all_requests(folder)
        approvals.ask(folder, replace(request, study="0" * 16, method="feddata"))

    with pytest.raises(StopIteration):
        approvals.announce(folder, said.append, wait)
    assert ["feddata" in text for text in said[::2]] == [False, True]


@pytest.mark.parametrize(
    ("stricter", "key"),
    [
        ({"shares": ("statistics",)}, "shares"),
        ({"methods": ("scaffold",)}, "methods"),
        ({"least_batch": 1000}, "least_batch"),
        ({"most_rounds": 1}, "most_rounds"),
        ({"least_samples": 10}, None),  # as many as the smallest class has
        ({"least_samples": 11}, "least_samples"),
    ],
)
def test_a_stricter_policy_stops_a_run_that_goes_on(site, stricter, key):
    """N1: what an operator took back in the policy went on leaving in the runs that had begun."""
    assert setup(site, "rebafl")["ready"]
    allow(site, **stricter)
    asked = answer(site, "score", 1, {"w": weights(site)}, lr=0.05)
    assert (asked.get("code"), f"({key})" in asked.get("text", "")) == (
        ("E520", True) if key else (None, False)
    )
