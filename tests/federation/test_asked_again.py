"""What a coordinator gets that asks again: the same for the same order, and little for other orders of a
round."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import allow, answer, begun, weights
from unskew.core.trees import tree_map
from unskew.errors import UsageError
from unskew.federation.site.run_folder import RunFiles
from unskew.federation.site.site import Site
from unskew.federation.site.site_ledger import KEPT_ROUNDS, AnsweredRequest, RunLedger, SiteLedger
from unskew.records import checkpoints

needs_accounting = pytest.mark.skipif(
    not importlib.util.find_spec("dp_accounting"), reason="the extra [dp] is not installed"
)
NOISY = "dpsgd(noise_multiplier=1.0)"
FEATURES = {"part": "flea", "trip": 0, "lr": 0.05}


@pytest.fixture
def site(tmp_path):
    """A site whose policy and operator allow everything."""
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def flea(site, rounds: int = 3):
    """A site that was set up for FLea; asks for its features after round t with weights that were moved by
    `by`."""
    settings, first = fake.small("flea", rounds=rounds).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    return lambda t, by: answer(site, "visit", t, {"w": tree_map(lambda w: w + by, first)}, **FEATURES)


def test_features_that_were_approved_are_sent_for_three_orders_of_a_round(site):
    """N1: features of the same samples through weights of the coordinator's choice, as often as it liked in
    one round."""
    ask = flea(site)
    assert [ask(1, by).get("n") for by in (0.0, 0.1, 0.2)] == [33] * 3
    refused = ask(1, 0.3)
    assert refused["code"] == "E520"
    assert "of round 1 was sent for 3 different orders already" in refused["text"]
    assert ask(2, 0.3)["n"] == 33, "another round is another order"


def test_the_same_order_is_answered_again(site):
    """N1: a server that was killed asks again for what it has lost, as often as it is killed."""
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


def test_the_same_order_brings_the_same_bits(site):
    """N1: which is why it needs no limit of its own."""
    train = begun(site)
    assert train(1)["sha256"] == train(1)["sha256"]


def test_every_share_of_a_round_counts_however_it_is_asked_for(site):
    """N1: weights and scores, too."""
    begun(site)
    ask = lambda kind, by, **more: answer(  # noqa: E731
        site, kind, 1, {"w": tree_map(lambda w: w + by, weights(site))}, lr=0.05, **more
    )
    assert [ask("train", by, score=0.05)["n"] for by in (0.0, 0.1, 0.2)] == [33] * 3
    assert "'weights' of round 1" in ask("train", 0.3)["text"]
    assert "'score/global' of round 1" in ask("score", 0.3)["text"]


def test_an_order_that_is_refused_after_it_was_computed_counts_as_an_answer(site):
    """Or a coordinator could have a site compute without end."""
    ask = flea(site)
    for by in range(4):
        ask(1, by / 10)
    run = SiteLedger.read(site.member.folder).runs["r1"]
    assert run.answers["visit"] == 4
    ledger = map(json.loads, (site.member.folder / "runs/r1/ledger.jsonl").read_text().splitlines())
    left = [row["bytes"] for row in ledger if row["share"] != "said"]
    assert run.bytes == 3 * sum(left[: len(run.orders["1"])])


def test_rounds_that_are_long_over_are_not_answered_again(site):
    """N1: orders are remembered for the last rounds only, so older rounds must be closed."""
    allow(site)
    train = begun(site, rounds=20)
    for t in (1, 2, 9):
        assert train(t)["n"] == 33
    assert "has come to round 9 here, and round 4 is over" in train(4)["text"]
    assert train(5)["n"] == 33
    assert set(SiteLedger.read(site.member.folder).runs["r1"].orders) == {"9", "5"}


def test_an_order_is_everything_that_decides_about_the_answer():
    header = {"run": "r1", "serial": 1, "site": "a", "kind": "visit", "t": 1, "lr": 0.1, "sha256": "x"}
    asked = AnsweredRequest.of(header)
    assert AnsweredRequest.of({**header, "serial": 2}) == asked
    for other in (
        {"sha256": "y"},
        {"lr": 0.2},
        {"base": 3},
        {"axes": {"w": [1, 0]}},
        {"trip": 1},
        {"early": [["a", 0]]},
    ):
        assert AnsweredRequest.of({**header, **other}).order != asked.order, other


def test_a_record_from_before_orders_were_kept_is_read(tmp_path):
    old = {"study": "s", "method": "fedavg", "rounds": 3, "began": 0.0, "t": 2}
    (tmp_path / "spent.json").write_text(json.dumps({"r1": old}))
    run = SiteLedger.read(tmp_path).runs["r1"]
    for order in "abc":
        run.order(2, ["weights"], order)
    with pytest.raises(UsageError, match="E520"):
        run.order(2, ["weights"], "d")


def test_what_is_remembered_of_orders_is_bounded():
    run = RunLedger("s", "fedavg", 1000, 0.0)
    for t in range(1000):
        run.order(t, ["weights"], "a")
        run.t = t
    assert len(run.orders) == KEPT_ROUNDS


def noisy(site, rounds: int = 5):
    """A site that was set up for DP-SGD; asks it to train in round t on weights that were moved by `by`."""
    settings, first = fake.small(NOISY, rounds=rounds).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    return lambda t, by=0.0: answer(site, "train", t, {"w": tree_map(lambda w: w + by, first)}, lr=0.05)


@needs_accounting
def test_noise_that_a_guarantee_counts_is_drawn_once_a_round(site):
    """N17: a coordinator that asked again for a round got other noise on the same samples, which epsilon does
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
    """N17: also where the operator has removed them."""
    train = noisy(site)
    sent = {t: train(t)["sha256"] for t in (1, 2, 3)}
    assert train(2)["sha256"] == sent[2]
    assert "round 1 is over" in train(1)["text"]
    (run,) = (site.member.folder / "runs").iterdir()
    RunFiles.of(run).remove()
    train = noisy(site)
    assert [train(t)["code"] for t in (1, 2, 3)] == ["E520"] * 3
    assert train(4)["n"] == 33
    (run / "noisy").write_text("?")
    assert "cannot be read" in train(5)["text"]


def test_a_site_that_begins_anew_does_not_take_what_another_was_set_up_with(site):
    first, settings = weights(site), fake.small("fedavg", rounds=3).as_dict()
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    (file,) = (site.member.folder / "runs").glob("*/setup.safetensors")
    tree, facts = checkpoints.read(file)
    assert answer(Site(site.member, site.load, approve="all"), "train", 1, {"w": first}, lr=0.05)["n"] == 33
    checkpoints.write(file, tree, {**facts, "owner": {**facts["owner"], "site": "another"}})
    refused = answer(Site(site.member, site.load, approve="all"), "train", 2, {"w": first}, lr=0.05)
    assert refused["code"] == "E201"
    assert "setup.safetensors" in refused["text"]
    assert "is of another site" in refused["text"]


@needs_accounting
def test_a_kept_reply_of_another_site_is_not_sent(site):
    """A folder that was copied as the beginning of another site's would have sent the first one's reply as
    its own."""
    train = noisy(site)
    train(1)
    (file,) = (site.member.folder / "runs").glob("*/noisy-1.safetensors")
    tree, facts = checkpoints.read(file)
    checkpoints.write(file, tree, {**facts, "owner": {**facts["owner"], "site": "another"}})
    refused = train(1)
    assert refused["code"] == "E201"
    assert "noisy-1.safetensors" in refused["text"]
    assert "is of another site" in refused["text"]


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


@needs_accounting
def test_what_was_sent_once_is_removed_and_not_made_again(site):
    settings, first = fake.small("ccvr+dpsgd", rounds=2).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    trip = {"part": "ccvr", "trip": 0, "lr": 0.05}
    sent = answer(site, "visit", 2, {"w": first}, **trip)
    assert sent["n"] == 33
    (run,) = (site.member.folder / "runs").iterdir()
    assert {p.name for p in run.glob("noisy*")} == {"noisy-trip0.0", "noisy-trip0.0-2.safetensors"}
    RunFiles.of(run).remove()
    assert [p.name for p in run.glob("noisy*")] == ["noisy-trip0.0"]
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    assert "round 2 is over" in answer(site, "visit", 2, {"w": first}, **trip)["text"]


def test_without_a_proof_statistics_are_computed_anew_and_are_the_same(site):
    ask = measured(site, "fedrdn")
    assert ask()["sha256"] == ask()["sha256"]
    assert ask(0.1)["n"] == 33
    assert not list((site.member.folder / "runs").glob("*/noisy*"))
