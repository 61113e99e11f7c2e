"""A run's number stands for one study, set up in one way; what is asked again is answered alike and counted."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import allow, answer, begun, hello, weights
from unskew.core.trees import tree_map
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
    """A refused study stayed warm under the number of an approved one, and the next request took every
    sample."""
    site.guard.approve = "ask"
    hello(site)
    approvals.decide(site.member.folder, "r1", "approved")
    train = begun(site)
    assert setup(site, ALL_SAMPLES)["code"] == "E520"
    assert answer(site, "visit", **VISIT)["code"] == "E310"  # plain averaging has no such Part
    assert train(1)["n"] == 33
    assert SiteLedger.read(site.member.folder).runs["r1"].method == "fedavg"


@pytest.mark.parametrize("branch", ["shares", "early"])
def test_nothing_leaves_that_the_study_has_not_declared(site, branch):
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
    """An approved method drew other averages of samples whenever it was set up as another client, until
    all were known."""
    allow(site)
    assert setup(site, "fedmix(group=7)")["ready"]
    assert setup(site, "fedmix(group=7)")["ready"]  # as a server does after a crash
    assert "as another client" in setup(site, "fedmix(group=7)", **other)["text"]
    assert answer(site, "visit", part="fedmix", trip=0, lr=0.05)["n"] == 33


def test_a_number_that_waits_cannot_be_given_to_another_study(site):
    """The operator read of one study, and the same number asked again with another, which was
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


def test_a_number_that_waits_with_an_error_cannot_be_given_to_another_study(site):
    """The operator read of an error under r1; that question moved on to r2, and a yes to r1 released every
    sample."""
    site.guard.approve, folder = "ask", site.member.folder
    for run in ("r1", "r2"):
        assert hello(site, run=run, model="harnet")["code"] == "E522"
    assert "run r1 has asked with another study" in hello(site, ALL_SAMPLES)["text"]
    assert "run r1 has asked with another study" in hello(site, ALL_SAMPLES, model="harnet")["text"]
    approved = approvals.decide(folder, "r1", "approved")
    assert (approved.run, approved.method, approved.releases) == ("r1", "fedavg", "error")
    assert hello(site, model="harnet")["code"] != "E522"
    assert hello(site, ALL_SAMPLES)["code"] == "E520"


def test_a_run_that_is_named_like_the_digest_of_another_question_is_not_approved_for_it(site):
    site.guard.approve, folder = "ask", site.member.folder
    hello(site)
    (asks,) = approvals.all_requests(folder)
    assert hello(site, ALL_SAMPLES, run=asks.key[:16])["code"] == "E522"
    with pytest.raises(UsageError, match="E503"):
        approvals.decide(folder, asks.key[:16], "approved")
    assert approvals.decide(folder, asks.key[:17], "approved").method == "fedavg"
    assert "hello" in hello(site)
    assert hello(site, ALL_SAMPLES, run=asks.key[:16])["code"] == "E522"


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
    assert setup(site, "rebafl")["ready"]
    allow(site, **stricter)
    asked = answer(site, "score", 1, {"w": weights(site)}, lr=0.05)
    assert (asked.get("code"), f"({key})" in asked.get("text", "")) == (
        ("E520", True) if key else (None, False)
    )


def test_a_method_is_what_the_operator_reads_and_nothing_beside_it(site):
    """`dpsgd` was approved with its epsilon, and ran with `set: {dpsgd: {noise: 0.0001}}`, of which nobody
    was told."""
    settings = fake.small("fedprox").as_dict()
    forged = {**settings, "set": {"fedprox": {"mu": 100.0}}}
    refusal = answer(site, "hello", settings=forged)
    assert refusal["code"] == "E506"
    assert "by the setting 'set', which an operator would not read" in refusal["text"]
    tree = {"w": {"x": torch.zeros(1)}}
    assert answer(site, "setup", tree=tree, settings=forged, **FACTS)["code"] == "E506"
    assert "hello" in answer(site, "hello", settings=settings, run="r2")


needs_accounting = pytest.mark.skipif(
    not importlib.util.find_spec("dp_accounting"), reason="the extra [dp] is not installed"
)
NOISY = "dpsgd(noise_multiplier=1.0)"
FEATURES = {"part": "flea", "trip": 0, "lr": 0.05}


def flea(site, rounds: int = 3):
    """A site that was set up for FLea; asks for its features after round t with weights that were moved by
    `by`."""
    settings, first = fake.small("flea", rounds=rounds).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    return lambda t, by: answer(site, "visit", t, {"w": tree_map(lambda w: w + by, first)}, **FEATURES)


def test_features_that_were_approved_are_sent_for_three_orders_of_a_round(site):
    """Features of the same samples through weights of the coordinator's choice, as often as it liked in
    one round."""
    ask = flea(site)
    assert [ask(1, by).get("n") for by in (0.0, 0.1, 0.2)] == [33] * 3
    refused = ask(1, 0.3)
    assert refused["code"] == "E520"
    assert "of round 1 was sent for 3 different orders already" in refused["text"]
    assert ask(2, 0.3)["n"] == 33, "another round is another order"


def test_the_same_order_is_answered_again(site):
    ask = flea(site)
    for by in (0.0, 0.1, 0.2):
        ask(1, by)
    assert [ask(1, by)["n"] for by in (0.2, 0.0, 0.0, 0.1, 0.2)] == [33] * 5
    restarted = Site(site.member, site.load, approve="all")
    again = {"w": tree_map(lambda w: w + 0.1, weights(site))}
    assert answer(restarted, "visit", 1, again, **FEATURES)["n"] == 33
    assert {
        len(orders) for orders in SiteLedger.read(site.member.folder).runs["r1"].orders["1"].values()
    } == {3}


def test_rounds_that_are_long_over_are_not_answered_again(site):
    allow(site)
    train = begun(site, rounds=20)
    for t in (1, 2, 9):
        assert train(t)["n"] == 33
    assert "has come to round 9 here, and round 4 is over" in train(4)["text"]
    assert train(5)["n"] == 33
    assert set(SiteLedger.read(site.member.folder).runs["r1"].orders) == {"9", "5"}


def noisy(site, rounds: int = 5):
    """A site that was set up for DP-SGD; asks it to train in round t on weights that were moved by `by`."""
    settings, first = fake.small(NOISY, rounds=rounds).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    return lambda t, by=0.0: answer(site, "train", t, {"w": tree_map(lambda w: w + by, first)}, lr=0.05)


@needs_accounting
def test_noise_that_a_guarantee_counts_is_drawn_once_a_round(site):
    """A coordinator that asked again for a round got other noise on the same samples, which epsilon does
    not count."""
    train = noisy(site)
    first = train(1)
    assert train(1)["sha256"] == first["sha256"]
    restarted = Site(site.member, site.load, approve="all")
    again = answer(restarted, "train", 1, {"w": weights(site)}, lr=0.05)
    assert {n: again[n] for n in ("n", "loss", "sha256")} == {n: first[n] for n in ("n", "loss", "sha256")}
    assert answer(site, "train", 1, {"w": weights(site)}, lr=0.05, score=0.05)["n"] == 33, (
        "scores are no part of it"
    )
    for other in (train(1, 0.1), train(0)):
        assert other["code"] == "E520"
        assert "its guarantee counts one reply a round" in other["text"]
    assert train(2, 0.1)["sha256"] != first["sha256"]


@needs_accounting
def test_rounds_that_were_answered_with_noise_are_over_once_their_replies_are_gone(site):
    train = noisy(site)
    sent = {t: train(t)["sha256"] for t in (1, 2, 3)}
    assert train(2)["sha256"] == sent[2]
    assert "round 1 is over" in train(1)["text"]
    (run,) = (site.member.folder / "runs").iterdir()
    for file in run.glob("*.safetensors"):
        file.unlink()
    train = noisy(site)
    assert [train(t)["code"] for t in (1, 2, 3)] == ["E520"] * 3
    assert train(4)["n"] == 33
    (run / "noisy").write_text("?")
    assert "cannot be read" in train(5)["text"]


STATISTICS = "fedrdn+dpsgd(noise_multiplier=1.0)"


def measured(site, method=STATISTICS):
    """A site that was set up for FedRDN beside DP-SGD; asks for its statistics with weights that were moved
    by `by`."""
    settings, first = fake.small(method, rounds=3).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    trip = {"part": "fedrdn", "trip": 0, "lr": 0.05}
    return lambda by=0.0, t=0, **other: answer(
        site, "visit", t, {"w": tree_map(lambda w: w + by, first)}, **{**trip, **other}
    )


@needs_accounting
def test_sums_with_noise_are_drawn_once_a_trip(site):
    """From means with noise of their own, asked for again and again, the mean without noise can be
    computed."""
    ask = measured(site)
    first = ask()
    assert ask()["sha256"] == first["sha256"]
    restarted = Site(site.member, site.load, approve="all")
    again = answer(restarted, "visit", 0, {"w": weights(site)}, part="fedrdn", trip=0, lr=0.05)
    assert again["sha256"] == first["sha256"]
    other = ask(0.1)
    assert other["code"] == "E520"
    assert "its guarantee counts one reply a round" in other["text"]
    assert "nothing to ask" in ask(t=1)["text"]
    early = answer(site, "train", 0, {"w": weights(site)}, lr=0.05, early=[["fedrdn", 0]])
    assert early["code"] == "E520", "nor in another kind of request"
