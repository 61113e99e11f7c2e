"""A site's policy: what it refuses before anything is computed, and what a study would take, worked by hand."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.privacy_account import Account
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.errors import UsageError
from unskew.federation.protocol.wire_format import seal
from unskew.federation.site import study_review
from unskew.federation.site.policy import POLICY_FILE, Policy
from unskew.federation.site.site_ledger import RunLedger
from unskew.federation.site.study_review import Study, check_run
from unskew.methods.rebafl import ReBaFL
from unskew.runs import conformance

PRIVATE = "feddpms(alpha=5, width=8)"
SERIAL = itertools.count(1)


@pytest.fixture
def site(tmp_path):
    """The site that holds 33 samples and 12 for testing, with a policy that allows everything."""
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def answer(site, kind: str, t: int = 0, tree=None, **header) -> dict:
    """What a site's answer says to a request of its coordinator."""
    fixed = {"run": "r1", "serial": next(SERIAL), "site": site.member.name, "kind": kind, "t": t}
    return json.loads(site.answer(seal(fixed | header, tree or {}, fake.COORDINATOR)).text)


def hello(site, method: str = "fedavg", run: str = "r1", **changes) -> dict:
    return answer(site, "hello", run=run, settings=fake.small(method, **changes).as_dict())


def allow(site, **limits) -> None:
    replace(fake.OPEN, **limits).write(site.member.folder)


@pytest.mark.parametrize(
    ("limits", "method", "changes", "why"),
    [
        ({"shares": ("weights",)}, "feddata(share=1.0)", {}, "'feddata/x' is of the kind inputs (shares)"),
        (
            {"shares": ("weights", "labels")},
            "fedmix(group=1)",
            {},
            "'fedmix/x' is of the kind inputs (shares)",
        ),
        ({"shares": ("sums", "statistics")}, "rebafl", {}, "'the weights' is of the kind weights (shares)"),
        ({"least_samples": 3}, "fedmix(group=2)", {}, "3 samples would stand behind a number of 'fedmix/x'"),
        ({"least_samples": 20}, "rebafl", {}, "20 samples would stand behind a number of 'rebafl/sums'"),
        ({"least_samples": 34}, "fedavg", {}, "34 samples would stand behind a number of 'the weights'"),
        ({"least_samples": 20}, "fedavg", {}, "20 samples would stand behind a number of 'the score'"),
        ({"least_batch": 9}, "fedavg", {"batch": 8}, "batches of 8 (least_batch)"),
        ({"most_rounds": 4}, "fedavg", {"rounds": 5}, "5 rounds (most_rounds)"),
        ({"methods": ("fedavg",)}, "scaffold", {}, "'scaffold', which is not among fedavg (methods)"),
        (
            {"methods": ("dpsgd",)},
            "fedavg",
            {},
            "plain fedavg, in which a site's weights leave as they are, and fedavg is",
        ),
        ({"epsilon": 0.01}, PRIVATE, {}, "of the budget 0.01 is left"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_before_anything_is_computed(
    site, limits, method, changes, why
):
    allow(site, **limits)
    refusal = hello(site, method, **changes)
    assert refusal["code"] == "E520"
    assert why in refusal["text"]
    assert "hello" not in refusal


@pytest.mark.parametrize("method", ["scaffold+clip_median", "fedavg+median", "scaffold"])
def test_what_only_the_server_does_need_not_be_named(site, method):
    allow(site, methods=("fedavg", "scaffold"))
    assert "hello" in hello(site, method)


def test_the_default_policy_lets_no_inputs_features_or_labels_out(site):
    replace(Policy(), least_samples=1, least_batch=1).write(site.member.folder)
    refused = ("feddata", "fedmix", "fedbr", "flea")
    assert [hello(site, method, run=method).get("code") for method in refused] == ["E520"] * 4
    assert "hello" in hello(site, "scaffold+rebafl")


def test_what_does_not_say_what_it_is_counts_as_inputs(site, monkeypatch):
    said = ReBaFL.shares

    def silent(part, fed):
        return {name: replace(share, kind=None) for name, share in said(part, fed).items()}

    monkeypatch.setattr(ReBaFL, "shares", silent)
    allow(site, shares=("weights", "sums", "statistics", "features", "labels"))
    assert "'rebafl/sums' is of the kind inputs (its Part does not say" in hello(site, "rebafl")["text"]


def test_a_refusal_tells_no_number_of_samples(site):
    """33 samples, of which 12 for testing: a coordinator that asks again and again must not read them off the
    refusals."""
    allow(site, least_samples=1000)
    assert "33" not in hello(site)["text"]


def weights(site, **changes):
    """Those that the study's server would begin with."""
    from unskew.federation.site.study_review import forecast_settings

    settings = fake.small("fedavg", **changes).replace(clients=2)
    return forecast_settings(site.data, settings)[0].fed.net.weights()


def begun(site, **changes):
    """A site that was set up for a run of plain averaging; asks it to train in round t."""
    settings, first = fake.small("fedavg", **changes).as_dict(), weights(site)
    assert answer(site, "setup", tree={"w": first}, settings=settings, k=0, clients=1, largest=33)["ready"]
    return lambda t: answer(site, "train", t, {"w": first}, lr=0.05)


def test_more_rounds_than_the_study_has_are_refused(site):
    train = begun(site, rounds=2)
    assert train(1)["n"] == 33
    assert "to take 2 rounds, and this is round 3" in train(3)["text"]


def test_a_trip_is_answered_in_its_round_only(site):
    """The features of a method's last round, asked for in every round with weights of the coordinator's
    choice."""
    settings, facts = fake.small("ccvr", rounds=3).as_dict(), {"k": 0, "clients": 1, "largest": 33}
    first = {"w": weights(site)}
    assert answer(site, "setup", tree=first, settings=settings, **facts)["ready"]
    asked = {"part": "ccvr", "trip": 0, "lr": 0.05}
    assert "'ccvr' has nothing to ask after round 2" in answer(site, "visit", 2, first, **asked)["text"]
    assert answer(site, "visit", 3, first, **asked)["n"] == 33
    early = answer(site, "train", 1, first, lr=0.05, early=[["ccvr", 0]])
    assert early["code"] == "E520"


def test_a_policy_that_changes_counts_at_once(site):
    train = begun(site)
    assert train(1)["n"] == 33
    allow(site, least_samples=1000)
    assert "(least_samples)" in train(3)["text"]
    (site.member.folder / POLICY_FILE).unlink()
    assert train(3)["code"] == "E521"


def test_epsilon_is_a_budget_of_all_runs_together(site):
    allow(site, epsilon=10.0)
    assert "hello" in hello(site, PRIVATE)
    site.guard.ledger.begin("r0", RunLedger("s", PRIVATE, 1, 0.0, epsilon=9.9))
    assert "of the budget 10 is left" in hello(site, PRIVATE)["text"]
    assert "hello" in hello(site, run="r2")  # which accounts for none


NOISY = "dpsgd(noise_multiplier=5.0, clip=1.0, delta={})"


def test_an_epsilon_counts_at_its_delta_which_is_a_budget_too(site):
    """Whoever set `epsilon: 10` was asked for epsilon 0.0001 at delta 0.03, which lets out one of thirty
    samples whole."""
    allow(site, epsilon=1000.0)
    text = hello(site, NOISY.format(0.03), model="mlp")["text"]
    assert "its epsilon holds at a delta for which too little of the budget 0.0001 is left (delta)" in text
    assert "0.03" not in text
    site.guard.ledger.begin("r0", RunLedger("s", NOISY, 1, 0.0, epsilon=1.0, delta=8e-5))
    assert "hello" in hello(site, NOISY.format(2e-5), model="mlp", run="r4")
    assert "(delta)" in hello(site, NOISY.format(2.1e-5), model="mlp", run="r2")["text"]
    allow(site, epsilon=None)
    assert "hello" in hello(site, NOISY.format(0.03), model="mlp", run="r3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("least_sample: 5", "unknown key 'least_sample' at line 1. Did you mean 'least_samples'?"),
        ("shares: [weights, input]", "there is no kind 'input'. Did you mean 'inputs'?"),
        ("shares: weights", "shares must be"),
        ("methods: [scafold]", "no method 'scafold'. Did you mean 'scaffold'?"),
        ("most_rounds: many", "most_rounds must be"),
        ("least_samples: 0", "least_samples must be"),
        ("least_samples: 5\nleast_samples: 1", "stands at line 1 and at line 2"),
        ("- inputs", "must hold keys and values"),
        ("shares: [weights", "is not YAML"),
    ],
)
def test_a_typo_is_an_error_and_the_site_refuses_everything(site, text, why):
    path = site.member.folder / POLICY_FILE
    path.write_text(text)
    said = []
    site.say = said.append
    refusal = hello(site)
    assert refusal["code"] == "E521"
    assert str(path) not in refusal["text"]
    assert why in said[0]
    assert POLICY_FILE in said[0]


def test_a_policy_that_is_missing_or_that_others_may_change_refuses_everything(site):
    path, said = site.member.folder / POLICY_FILE, []
    site.say = said.append
    path.chmod(0o620)
    assert hello(site)["code"] == "E521"
    path.unlink()
    assert hello(site)["code"] == "E521"
    path.mkdir()
    assert hello(site)["code"] == "E521"
    assert "chmod 600" in said[0]
    assert "unskew site policy --default" in said[2]
    assert "cannot read the policy" in said[4]


def test_the_file_reads_back_what_it_says(tmp_path):
    policy = Policy(("fedavg", "scaffold"), ("weights", "inputs"), 7, 2, 3, 4, 0.5, 1e-6)
    policy.write(tmp_path)
    assert Policy.read(tmp_path) == policy


def test_the_run_goes_on_without_a_site_that_refuses(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    allow(sites[1000], methods=("fedavg",))
    loop, _, said = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("scaffold"), min_sites=2)
    refusal = (
        "E520 s0: the site's policy does not allow it: the study uses 'scaffold', which is not among fedavg"
    )
    assert any(line.startswith(refusal) for line in said)
    assert [h.site for h in loop.trainer.sites.hellos] == ["s1", "s2", "s3", "s4"]


def test_a_site_may_demand_secure_aggregation(site):
    """Also of a run that goes on: a policy counts at once."""
    open_, summed = (RunLedger("s", "fedavg", 3, 0.0, batch=16, summed=on) for on in (False, True))
    demanding = replace(Policy(), secure_aggregation="required", least_samples=1)
    check_run(demanding, summed)
    with pytest.raises(UsageError, match=r"E520 .*would read this site's own replies \(secure_aggregation\)"):
        check_run(demanding, open_)
    allow(site, secure_aggregation="required")
    for text in ("off", "on"):
        settings = fake.small("fedavg", secure_aggregation=text)
        with pytest.raises(UsageError) if text == "off" else contextlib.nullcontext():
            site.guard.check_hello(settings)


@dataclass(frozen=True)
class Sending(Part):
    """Shares five numbers with every reply, and three before round 1 and after every third round."""

    name: ClassVar[str] = "sending"

    def shares(self, fed):
        return {"s": Share((5,), kind="sums", samples="client")}

    def finish(self, w, c):
        return {"s": torch.zeros(5)}, {}

    @property
    def trips(self):
        def client(w, c):
            return {"t": torch.zeros(3)}

        return (Trip(lambda t, T: t % 3 == 0, client, lambda w, s, ups, fed: (w, s), self.trip_shares),)

    @staticmethod
    def trip_shares(fed):
        return {"t": Share((3,), kind="sums", samples="class")}


ROUNDS, TRIPS = 7, 3  # the trips of rounds 0, 3 and 6


def study(method: Method | None = None, **more) -> Study:
    made = conformance.loop_for(method or Method(Sending()))
    made.trainer.close()
    settings = conformance.short_settings(rounds=ROUNDS, **more)
    counts_KC = np.array([[20, 0, 13], [0, 0, 0]])
    return Study(made.trainer.method, settings, made.trainer.fed, made.trainer.sent, counts_KC, 33, 4)


def test_what_leaves_is_counted_in_every_round_and_at_every_trip():
    assert {what: often for what, _, often in study().shares()} == {
        "the weights": ROUNDS, "sending/s": ROUNDS, "sending/t": TRIPS, "the score": ROUNDS
    }  # fmt: skip


def test_epsilons_of_all_accounts_add_up_and_an_account_of_nothing_is_infinite(monkeypatch):
    known: dict[str, Account] = {}
    monkeypatch.setattr(study_review, "accounts", lambda method, fed, counts: known)
    assert study().epsilon == 0
    known |= {
        "a": Account("", ((1.0, "one"), (math.inf, "another")), delta=0.25),
        "b": Account("", ((2.0, "one"), (3.0, "another")), delta=0.5),
    }
    assert (study().epsilon, study().delta) == (4, 0.75)
    known["c"] = Account("", ((math.inf, "nothing finite"),))
    assert study().epsilon == math.inf
    assert (replace(study(), trains=0).epsilon, replace(study(), trains=0).delta) == (0, 0)


def test_the_fewest_samples_are_those_of_a_class_of_a_reply_or_of_the_tests():
    """33 samples, 13 of the rarer class, and 4 to test with."""
    each = {what: study().fewest(what, share) for what, share, _ in study().shares()}
    assert each == {"the weights": 33, "sending/s": 33, "sending/t": 13, "the score": 4}
    assert study().fewest_of_all == 4
    assert replace(study(), tests=0).fewest_of_all == 13
    assert replace(study(), tests=0, trains=0).fewest_of_all == 0


def test_a_question_looks_at_no_path_that_its_settings_name(site, tmp_path):
    """Otherwise a coordinator learns which files a site has, such as a patient's folder."""
    (tmp_path / "Mueller").mkdir()
    (tmp_path / "Mueller" / "a.csv").write_text("age,site,label\n1,b,0\n")
    site.guard.approve = "ask"
    settings = {name: value for name, value in fake.small("fedavg").as_dict().items() if name != "skew"}
    places = [str(tmp_path / name) + end for name in ("Mueller", "Maier") for end in ("", "(!)", "/*.csv")]
    answers = [
        answer(site, "hello", run=f"r{i}", settings=settings | {"data": place})
        for i, place in enumerate(places)
    ]
    assert {found["code"] for found in answers} == {"E522"}  # each waits for the operator
