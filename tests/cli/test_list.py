"""`unskew list methods`: the filters choose by what Parts declare."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import call
from unskew.core.part import Part
from unskew.methods import registry


def listed(*words: str) -> set[str]:
    done = call("list", "methods", *words)
    assert done.code == 0, done.err
    return {line.split()[0] for line in done.out.splitlines()}


def test_what_is_hard_family_and_task_are_those_that_parts_declare():
    assert {"flea", "feddata", "augment"} <= listed("--against", "scarcity")
    assert listed("--family", "privacy") == {"dp", "dpsgd"}
    assert "flea" not in listed("--task", "regression") >= {"fedavg", "scaffold"}
    assert listed() == set(registry.names())
    nothing = call("list", "methods", "--family", "fairness", "--against", "scarcity")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "No method passes all of these filters; leave one out.\n"


def test_what_is_chosen_is_told_in_full(monkeypatch):
    known = registry.names()
    few = {name: known[name] for name in ("fedavg", "scaffold", "flea")}
    monkeypatch.setattr(registry, "names", lambda: few)
    told = json.loads(call("list", "methods", "--against", "labels", "--json").out)
    assert set(told) == {"scaffold", "flea"}
    assert told["flea"]["shares"] != ["weights"]
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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("data --against labels", "--against works for methods only, not for data."),
        ("methods --against label", "got 'label'. Did you mean 'labels'?"),
        ("methods --task segment", "--task is one of classification, segmentation, regression"),
        ("method", "kind must be"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_in_a_sentence(given, says):
    done = call("list", *given.split())
    assert done.code == 2
    assert done.err.startswith("E109 ")
    assert says in done.err
