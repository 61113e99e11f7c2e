"""Requests that no honest coordinator makes are refused in one sentence that names no file of the site."""

from __future__ import annotations

import contextlib
import itertools
import os

import numpy as np
import pytest
import torch

from tests.federation import fake
from tests.federation.test_bad_replies import WIDE
from tests.federation.test_policy import hello
from unskew import config
from unskew.config import Settings
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError
from unskew.federation.protocol.study_rules import SiteView, prepare, study_settings
from unskew.federation.protocol.wire_format import seal, unseal
from unskew.federation.site import site as site_module
from unskew.federation.site import site as site_site
from unskew.federation.site import study_review
from unskew.federation.site.guard import DATA_ERROR_TEXT, without_paths
from unskew.federation.site.site import Site
from unskew.methods import registry
from unskew.runs.resolve import run_on

SETUP = {"k": 0, "clients": 5, "largest": 40}
SERIALS = itertools.count(1)


@pytest.fixture
def site(tmp_path) -> Site:
    return fake.sites(tmp_path, fake.federation())[1000]


def answer(site: Site, kind: object, tree=None, **header) -> tuple[str, str]:
    fixed = {"run": "r1", "serial": next(SERIALS), "site": "s0", "kind": kind, "t": 0}
    said = unseal(
        site.answer(seal(fixed | header, tree or {}, fake.COORDINATOR)), fake.KEYS["s0"].public, WIDE
    ).header
    return said.get("code", ""), said.get("text", "")


def test_whatever_a_request_raises_is_an_answer_that_tells_its_type_alone(site, monkeypatch):

    def failing(*_):
        raise RuntimeError("/home/ward/patients.npz: Mrs Smith")

    said: list[str] = []
    site.say = said.append
    with monkeypatch.context() as patched:
        patched.setattr(site, "_check", failing)
        assert answer(site, "hello", settings={}) == ("E311", "RuntimeError; the site's log says more.")
    monkeypatch.setitem(site._answers, "hello", failing)
    assert answer(site, "hello", settings={}) == ("E311", "RuntimeError; the site's log says more.")
    assert len([text for text in said if "Mrs Smith" in text]) == 2
    monkeypatch.setattr(site_module, "unseal", failing)
    unread = site.answer(seal({}, {}, fake.COORDINATOR))
    assert unseal(unread, fake.KEYS["s0"].public, WIDE).header["code"] == "E311"


def test_a_coordinator_that_counts_up_runs_leaves_no_more_folders_than_the_bound(site, monkeypatch):
    monkeypatch.setattr(site_module, "MOST_RUNS", 2)
    for number in ("r1", "r2"):
        assert "runs have asked" not in answer(site, "hello", settings={}, run=number)[1]
    code, text = answer(site, "hello", settings={}, run="r3")
    assert code == "E520"
    assert "2 runs have asked" in text
    folders = {path.name for path in (site.member.folder / "runs").iterdir()}
    assert folders == {"r1", "r2"}
    assert "runs have asked" not in answer(site, "hello", settings={}, run="r1")[1]  # it goes on


WRONG = {
    "t": [-1, True, 10**300, 1.0],
    "k": [-1, "a", True],
    "clients": [10001, 0],
    "largest": [-1, (1 << 40) + 1],
    "lr": [None, "x", -0.1, True],
    "base": ["../../x", -1, 10**300],
    "early": [{"a": 1}, "ab", [["a"]], [["a", -1]]],
    "score": ["x"],
    "trip": [-1],
    "part": [5],
    "settings": ["x"],
}


def test_a_value_that_no_honest_request_has_is_named(site):
    for name, values in WRONG.items():
        for value in values:
            code, text = answer(site, "train", **{name: value})
            assert code == "E310"
            assert text.startswith(f"the request's '{name}' is ")
            assert len(text) < 200


def test_a_request_that_lacks_something_or_names_a_round_too_late_says_so(site):
    settings = fake.small("fedavg", rounds=2).as_dict()
    assert answer(site, "setup", settings=settings, **SETUP) == (
        "E310",
        "the request lacks 'w', which every 'setup' has.",
    )
    w = {"w": {"a": torch.zeros(1)}}
    assert answer(site, "setup", w, **SETUP)[1] == "the request lacks 'settings', which every 'setup' has."
    assert "'k' is 5, expected a number below its 5" in answer(site, "setup", w, **SETUP | {"k": 5})[1]
    assert (
        "'t' is 3, expected at most the study's 2"
        in answer(site, "setup", w, settings=settings, t=3, **SETUP)[1]
    )
    assert answer(site, "setup", w, settings=settings, **SETUP)[0] == "E504", "all else is in order"
    assert answer(site, "hello", settings=settings) == ("", "")


def first_weights(site: Site, method: str = "fedavg") -> dict[str, torch.Tensor]:
    """What the run's model begins with, at the coordinator as at this site."""
    settings = fake.small(method)
    view = SiteView.of(prepare(site.data, settings), SETUP["k"], SETUP["clients"], SETUP["largest"])
    return run_on(view, settings, registry.parse(method)).fed.net.weights()


def test_weights_that_the_runs_model_has_not_are_named(site):
    w, settings = first_weights(site), fake.small("fedavg").as_dict()
    name = next(iter(w))
    as_integers = {n: t.to(torch.int8) for n, t in w.items()}
    assert answer(site, "setup", {"w": as_integers}, settings=settings, **SETUP)[0] == "E504"
    assert answer(site, "setup", {"w": w}, settings=settings, **SETUP) == ("", "")
    form = f"{list(w[name].shape)} of float32 as in the run's model."
    for wrong, text in (
        ({name: torch.zeros(3)}, f"the request's '{name}' is [3] of float32, expected {form}"),
        (
            {name: w[name].half()},
            f"the request's '{name}' is {list(w[name].shape)} of float16, expected {form}",
        ),
        ({name: {"x": w[name]}}, f"the request's '{name}' is no tensor, expected {form}"),
        ({"more": torch.zeros(3)}, "the request's weights hold 'more', which the run's model has not."),
        (torch.zeros(3), "the request's weights are one tensor, expected one for each name."),
    ):
        assert answer(site, "train", {"w": wrong}, t=1, lr=0.05) == ("E310", text)
    assert answer(site, "train", {"w": {name: w[name]}}, t=1, lr=0.05) == ("", "")


@pytest.mark.parametrize("rate", [{"lr": 5.0}, {"lr": 0.0}, {"lr": 0.05, "score": 5.0}, {"lr": 0.1}])
def test_a_learning_rate_that_is_not_the_studys_is_refused(site, rate):
    """An operator approves a study with its learning rate; the coordinator could then train with any
    other."""
    w, settings = {"w": first_weights(site)}, fake.small("fedavg", lr=0.1, lr_decay=0.5).as_dict()
    assert answer(site, "setup", w, settings=settings, **SETUP) == ("", "")
    code, text = answer(site, "train", w, t=2, **rate)
    assert (code, "learning rate" in text, text.endswith(".")) == ("E520", True, True)
    assert answer(site, "train", w, t=2, lr=0.05, score=0.1) == ("", "")


def test_a_trace_that_a_coordinator_names_is_not_opened(site, tmp_path):
    """A coordinator could have a site read any of its files, before anybody approved anything, and learn
    whether it exists."""
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    named = [
        f"trace:{tmp_path}/no.csv",
        "trace:/etc/passwd",
        f" trace :{tmp_path}/pipe,drop:0.1",
        f"trace:{tmp_path}/pipe",
    ]
    for run, text in enumerate(named):
        settings = fake.small("fedavg").as_dict() | {"availability": text}
        assert answer(site, "hello", run=f"r{run}", settings=settings) == ("", ""), text
    w = {"w": first_weights(site)}
    assert answer(site, "setup", w, run="r1", settings=settings | {"availability": named[1]}, **SETUP) == (
        "",
        "",
    )
    assert answer(site, "train", w, run="r1", t=1, lr=0.05) == ("", "")


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        ({"kind": "score", "t": 10}, True),
        ({"kind": "score", "t": 9}, False),
        ({"kind": "score", "t": 12}, True),  # the last round
        ({"kind": "score", "t": 0}, True),
        ({"kind": "train", "t": 6, "score": 0.1}, True),  # of round 5
        ({"kind": "train", "t": 5, "score": 0.1}, False),
        ({"kind": "train", "t": 5}, True),
        ({"kind": "visit", "t": 4}, True),
    ],
)
def test_only_the_rounds_that_a_study_scores_are_scored(header, fits):
    """A coordinator had other weights scored in every round, of a study that was approved with scores every 5
    rounds."""
    study = Settings(rounds=12, eval_every=5)
    site_site.check_scored(header, study, True)
    with (
        contextlib.nullcontext() if fits else pytest.raises(UsageError, match=r"E520 .*scores every 5 rounds")
    ):
        site_site.check_scored(header, study, False)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot write /home/ann/lung/site/runs/r1/serial (3 bytes free).", "cannot write X (3 bytes free)."),
        ("E401 '../scans/patient-7.png', or ~/x: no", "E401 'X', or X: no"),
        ("see /tmp/unskew-error-1.log.", "see X"),
        (r"C:\Users\ann\scans.npz is no archive", "X is no archive"),
        ("the model net.py:make, of site/runs/r1", "the model X:make, of X"),
        (
            "site b holds 'rebafl/sums' of 38.4 KB/s and/or 1/2",
            "site b holds 'rebafl/sums' of 38.4 KB/s and/or 1/2",
        ),
        ("(read: each / sum)", "(read: each / sum)"),
    ],
)
def test_paths_are_taken_out_and_names_of_shares_are_not(text, left):
    """E203: the coordinator read where a site keeps its runs."""
    assert without_paths(text, ["site/", "net.py"]).replace("a file of the site", "X") == left


@pytest.fixture
def larger_site(tmp_path):
    return fake.sites(tmp_path / "sites", fake.federation())[998]


@pytest.mark.parametrize(
    "text",
    [
        "E413 scans of anna/7.parquet has changed since it was checked; leave data alone.",  # relative, with spaces
        "E404 lung: the label of sample 17 is 'hiv positive', which is none of the classes.",
    ],
)
def test_an_error_in_the_data_is_told_to_the_sites_operator_alone(larger_site, text):
    """The coordinator read names of files, of columns and of patients, and values."""
    said = []

    def load():
        raise DataError(text[:4], text[5:])

    here = Site(larger_site.member, load, approve="all", say=said.append)
    refused = hello(here)
    assert (refused["code"], refused["text"]) == (text[:4], DATA_ERROR_TEXT)
    assert said == [f"run r1: 'hello' was not answered: {text}"]


def own_data() -> Dataset:
    x, y = np.zeros((12, 1, 8, 8), np.float32), np.arange(12) % 2
    return Dataset("own", x, y, x[:2], y[:2], ("no", "yes"))


def test_n1_a_model_without_room_is_refused_before_its_weights_are_made(monkeypatch):
    """Attack: a study that nobody approved names a model of many gigabytes, and its greeting kills the
    site."""
    made = []
    monkeypatch.setattr(study_review, "run_on", lambda *a: made.append(a))
    asked = study_settings(config.build({"model": "mlp(hidden=[2000000000])"})).replace(clients=2)
    with pytest.raises(
        UsageError, match=r"E108 the study's model 'mlp\(hidden=\[2000000000\]\)' has 536 GB of weights"
    ):
        study_review.forecast_settings(own_data(), asked)
    assert not made
    with pytest.raises(UsageError, match=r"and this site has 1 KB of memory"):
        study_review.check_model(
            study_settings(config.build({"model": "mlp"})), own_data(), memory_bytes=1000
        )


def test_weights_of_a_part_that_exceed_the_memory_are_refused_before_they_are_made():
    method = f"fedbr(widths=[{'16384,' * 999}16384])"
    asked = study_settings(config.build({"model": "mlp", "method": method})).replace(clients=2)
    with pytest.raises(UsageError, match=r"E108 the study's method 'fedbr.* adds 1.07e[+]03 GB of weights"):
        study_review.forecast_settings(own_data(), asked)


def test_a_model_of_too_many_layers_is_refused_before_they_are_made(monkeypatch):
    """Attack: a question that nobody approved names 4,000 layers, and the site computes for half a minute."""
    made = []
    monkeypatch.setattr(study_review, "run_on", lambda *a: made.append(a))
    asked = study_settings(config.build({"model": f"mlp(hidden=[{'1,' * 4000}1])"})).replace(clients=2)
    with pytest.raises(UsageError, match=r"E108 the study's model .* has more than 2,000 layers"):
        study_review.forecast_settings(own_data(), asked)
    assert not made
