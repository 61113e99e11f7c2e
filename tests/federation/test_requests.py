"""Requests that no honest coordinator makes: a site refuses each in one sentence, and answers the next
one."""

from __future__ import annotations

import contextlib
import itertools
import os

import pytest
import torch

from tests.federation import fake
from tests.federation.test_bad import WIDE
from unskew.config import Settings
from unskew.errors import UsageError
from unskew.federation.protocol.study_rules import SiteView, prepare
from unskew.federation.protocol.wire_format import seal, unseal
from unskew.federation.site import site as site_module
from unskew.federation.site import site as site_site
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


@pytest.mark.parametrize("kind", [[], {}, None, 5, "other"])
def test_a_kind_that_is_no_word_does_not_end_the_worker(site, kind):
    """N11: a list is no key of a dict, and the worker died of it."""
    assert answer(site, kind) == ("E310", "the request is not for site s0.")


def test_whatever_a_request_raises_is_an_answer_that_tells_its_type_alone(site, monkeypatch):
    """N11: and what an error says of this site's files stays here."""

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


BAD = [
    {"t": -1},
    {"t": True},
    {"t": 10**300},
    {"t": 1.0},
    {"k": -1},
    {"k": "a"},
    {"k": True},
    {"clients": 10_001},
    {"clients": 0},
    {"largest": -1},
    {"largest": (1 << 40) + 1},
    {"lr": None},
    {"lr": "x"},
    {"lr": -0.1},
    {"lr": True},
    {"base": "../../x"},
    {"base": -1},
    {"base": 10**300},
    {"early": {"a": 1}},
    {"early": "ab"},
    {"early": [["a"]]},
    {"early": [["a", -1]]},
    {"score": "x"},
    {"trip": -1},
    {"part": 5},
    {"settings": "x"},
]


@pytest.mark.parametrize("header", BAD, ids=str)
def test_a_value_that_no_honest_request_has_is_named(site, header):
    """N11: most ended as a sentence of Python's, and some were used."""
    code, text = answer(site, "train", **header)
    assert code == "E310"
    assert text.startswith(f"the request's '{next(iter(header))}' is ")
    assert len(text) < 150


def test_a_request_that_lacks_something_or_names_a_round_too_late_says_so(site):
    """N11: a request without weights was answered with Python's KeyError."""
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
    """N11: other shapes, types or names ended as a sentence of Python's, in the middle of training."""
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


@pytest.mark.parametrize("text", ["evil.py", "evil.py()", "evil.py:make"])
def test_a_model_from_a_file_of_the_coordinators_is_refused_however_it_is_written(site, text):
    """A file without a function was refused only by whoever would have imported it."""
    code, said = answer(site, "hello", settings=fake.small("fedavg").as_dict() | {"model": text})
    assert (code, said[:21]) == ("E506", "the study's model is ")


def with_a_method(site: Site, method: str) -> dict[str, dict]:
    """A run of this method that is set up at the site; what an honest coordinator sends in round 1."""
    settings = fake.small(method)
    view = SiteView.of(prepare(site.data, settings), SETUP["k"], SETUP["clients"], SETUP["largest"])
    parsed = registry.parse(method)
    fed = run_on(view, settings, parsed).fed
    w = fed.net.weights()
    assert answer(site, "setup", {"w": w}, settings=settings.as_dict(), **SETUP) == ("", "")
    (part,) = parsed.parts
    return {"w": w, "down": {part.name: part.server_init(w, fed)}}


def test_slices_that_parts_here_do_not_read_are_named(site):
    """A slice of other code of a Part ended as a KeyError or a RuntimeError, whose words only the site's log
    had."""
    sent = with_a_method(site, "scaffold")
    leaves = sent["down"]["scaffold"]["c"]
    name = min(leaves)
    tensor = leaves[name]
    path, form = f"c/{name}", f"{list(tensor.shape)} of float32"
    mend = "run the same version of it at both ends."

    def other(value: torch.Tensor) -> dict[str, dict]:
        return {**sent, "down": {"scaffold": {"c": {**leaves, name: value}}}}

    longer = torch.zeros(len(tensor) + 1, *tensor.shape[1:])
    for wrong, text in (
        ({"w": sent["w"]}, f"without '{path}', which it has at this site"),
        ({**sent, "down": {"scaffold": torch.zeros(1)}}, f"without '{path}', which it has at this site"),
        (
            other(tensor.half()),
            f"with '{path}' as {list(tensor.shape)} of float16; at this site it is {form}",
        ),
        (
            other(tensor[..., None]),
            f"with '{path}' as {[*tensor.shape, 1]} of float32; at this site it is {form}",
        ),
        (other(longer), f"with '{path}' as {list(longer.shape)} of float32; at this site it is {form}"),
    ):
        said = answer(site, "train", wrong, t=1, lr=0.05)
        assert said == ("E504", f"the coordinator sends the slice of 'scaffold' {text}; {mend}")
    said = answer(site, "train", {**sent, "down": torch.zeros(1)}, t=1, lr=0.05)
    assert said == ("E310", "the request's slices are one tensor, expected some for each Part.")
    assert answer(site, "train", sent, t=1, lr=0.05) == ("", "")


def test_an_exchange_of_a_part_brings_what_it_reads_and_no_more(site, monkeypatch):
    sent = with_a_method(site, "feddpms(alpha=5, width=8)")
    slice_ = sent["down"]["feddpms"]
    brings = {"w": sent["w"], "down": {"feddpms": {leaf: slice_[leaf] for leaf in ("asked", "decoder")}}}
    lacks = {"w": sent["w"], "down": {"feddpms": {"decoder": slice_["decoder"]}}}
    asks = {"t": 1, "lr": 0.05, "part": "feddpms"}
    assert answer(site, "visit", {"w": sent["w"]}, trip=0, **asks) == ("", "")
    assert answer(site, "visit", brings, trip=1, **asks) == ("", "")
    code, text = answer(site, "visit", lacks, trip=1, **asks)
    assert (code, "the slice of 'feddpms' without 'asked', which it has at this site" in text) == (
        "E504",
        True,
    )
    code, text = answer(site, "train", brings, t=2, lr=0.05)
    assert (code, "the slice of 'feddpms' without 'count', which it has at this site" in text) == (
        "E504",
        True,
    )

    def failing(part, w, c):
        raise KeyError("odd")

    monkeypatch.setattr(type(site._run[2].method.parts[0]), "send_decoder", failing)
    said = answer(site, "visit", {"w": sent["w"]}, trip=0, **asks)
    assert said == (
        "E311",
        "KeyError; the site's log says more.",
    ), "slices that it does not read are not to blame"


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
