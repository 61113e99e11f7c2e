"""`unskew list methods`: the filters choose by what Parts declare, as a site's policy would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest

from tests.cli.calling import call
from tests.samples import EVERYTHING
from unskew.cli import list_
from unskew.cli.list_ import Filters
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Kind
from unskew.errors import UsageError
from unskew.federation.site.policy import Policy
from unskew.federation.site.study_review import Study, check_study
from unskew.methods import registry
from unskew.report.method_profile import Profile
from unskew.runs import conformance

SAMPLES = 1000
"""Of the site whose policy is asked; a multiple of all the numbers of samples that Parts average over."""


FEW = {
    *("fedavg", "fedprox", "flea", "feddata", "augment", "scaffold", "rbsm", "dp", "dpsgd", "median", "topk"),
    *("fedgen", "ditto", "fedrep", "qffl", "fedamp", "feddpms", "ifca", "fd"),
}
"""Methods of every kind; all of them are described by `make matrix`."""


@pytest.fixture(scope="module")
def profiles():
    known = registry.names()
    with pytest.MonkeyPatch.context() as patch:
        if not EVERYTHING:
            patch.setattr(registry, "names", lambda: {name: known[name] for name in known if name in FEW})
        return dict(list_._profiles())


@pytest.fixture
def few(profiles, monkeypatch):
    monkeypatch.setattr(
        list_,
        "_profiles",
        lambda: [(n, profiles[n]) for n in ("fedavg", "fedprox", "flea", "scaffold", "rbsm")],
    )


def chosen(profiles, **filters):
    return {name for name, profile in profiles.items() if Filters(**filters).fits(profile)}


@pytest.mark.parametrize(
    "policy",
    [
        {"shares": ("weights",), "least_samples": 1},
        {"shares": ("sums", "statistics"), "least_samples": 1},
        {"shares": get_args(Kind), "least_samples": 5},
        {"shares": get_args(Kind), "least_samples": 1, "handing_on": "refused"},
    ],
)
def test_a_filter_lets_through_what_a_site_with_that_policy_does(profiles, policy):
    allowed = set()
    for name, profile in profiles.items():
        part = Method(profile.part) if profile.part.name else Method()
        counts_KC = np.full((1, 2), SAMPLES // 2)
        study = Study(
            part, conformance.short_settings(), profile.fed, tuple(profile.fed.shared), counts_KC, SAMPLES, 0
        )
        try:
            at_site = Policy(**({"handing_on": "allowed"} | policy))
            check_study(at_site, study)
            allowed.add(name)
        except UsageError:
            pass
    assert chosen(profiles, **(policy | {"shares": ",".join(policy["shares"])})) == allowed
    assert 0 < len(allowed) < len(profiles)


def test_what_is_hard_family_and_task_are_those_that_parts_declare(profiles):
    assert {"flea", "feddata"} <= chosen(profiles, against="scarcity")
    assert chosen(profiles, against="scarcity", shares="weights") == {"augment"}
    assert chosen(profiles, family="privacy") == {"dp", "dpsgd"}
    assert "flea" not in chosen(profiles, task="regression") >= {"fedavg", "scaffold"}
    summed = chosen(profiles, secure_aggregation="required")
    assert {"fedavg", "scaffold"} <= summed
    assert not {"median", "flea", "topk"} & summed


def test_a_part_that_sends_each_client_its_own_and_does_not_say_what_hands_on(profiles):
    @dataclass(frozen=True)
    class Silent(Part):
        name = "silent"

        def dispatch(self, w, s, k, fed):
            return w, {}

    refused = Filters(handing_on="refused")
    assert refused.fits(Profile(Part(), profiles["fedavg"].fed, ""))
    assert not refused.fits(Profile(Silent(), profiles["fedavg"].fed, ""))


def test_what_is_chosen_is_listed_or_told_in_full(few):
    assert [line.split()[0] for line in call("list", "methods", "--against", "labels").out.splitlines()] == [
        "fedprox", "flea", "scaffold", "rbsm",
    ]  # fmt: skip
    told = json.loads(call("list", "methods", "--least-samples", "2", "--json").out)
    assert set(told) == {"fedavg", "fedprox", "scaffold", "rbsm"}
    assert told["scaffold"] | {"about": "", "paper": "", "use_when": ""} == {
        "about": "",
        "year": 2020,
        "paper": "",
        "family": "steps",
        "against": ["labels"],
        "tasks": list(Part.tasks),
        "changes": ["steps", "server"],
        "shares": ["weights"],
        "sends_weights": True,
        "least_samples": None,
        "reads": "sums",
        "secure_aggregation": True,
        "hands_on": "",
        "exchanges": 0,
        "bytes_up": 2.0,
        "bytes_down": 2.0,
        "computing": 1.0,
        "roles": [],
        "use_when": "",
    }
    assert told["scaffold"]["paper"] == "Karimireddy et al., ICML 2020, algorithm 1, option II"
    nothing = call("list", "methods", "--family", "fairness")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "No method passes all of these filters; leave one out.\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("data --against labels", "--against works for methods only, not for data."),
        ("methods --against label", "got 'label'. Did you mean 'labels'?"),
        ("methods --shares weights,sum", "got 'sum'. Did you mean 'sums'?"),
        ("methods --task segment", "--task is one of classification, segmentation, regression"),
        ("methods --handing-on never", "handing_on must be 'allowed' or 'refused'"),
        ("method", "kind must be"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_in_a_sentence(given, says, few):
    done = call("list", *given.split())
    assert done.code == 2
    assert done.err.startswith("E109 ")
    assert says in done.err
