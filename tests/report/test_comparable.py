"""What a page says of runs that are no fair comparison, and of scores of fewer rounds, clients or samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.report.test_summary import run
from unskew.config import FIELDS
from unskew.report import page
from unskew.report.analysis import results_table
from unskew.report.analysis.summary import summary_table
from unskew.report.sections import context_of, partition, reproducibility


def made(method, seed=0, accuracy=(0.5,), federation=None, env=None, **config):
    one = run(method, seed, accuracy)
    return replace(one, config={**one.config, **config}, federation=federation or {}, env=env or {})


def doubts(*runs):
    return page.comparability_doubts(context_of(list(runs), "x"))


SAME = {"clients": 2, "sizes": {"train": [3, 4], "test": [1, 1]}, "test": 2, "labels": [[3, 0], [0, 4]]}
OTHER = {**SAME, "labels": [[2, 1], [0, 4]]}
OWN = {"workers": 4, "device": "cuda", "measure": "separation", "metrics": "ece", "set": {"b": {"mu": 1}}}


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (made("a", federation=SAME), made("b", federation=SAME, **OWN), ""),
        (made("a", lr=0.1), made("a", lr=0.05), ""),  # what is compared, and what names the rows
        (made("a"), made("b", validation=0.2), "differ in their data (validation 0.0, 0.2)"),
        (made("a"), made("a", skew="iid"), "differ in their data (skew dirichlet:0.1, iid)"),
        (made("a"), made("b", rounds=40, lr=0.5), "Not only the methods of these runs differ (rounds 1, 40; lr"),
        (made("a"), made("b", lr=FIELDS["lr"].default), ""),  # a run of before there was the setting
        (made("a"), made("local", rounds=40), ""),  # a reference
        (made("a", federation=SAME), made("b", federation=OTHER), "hold different samples (a seed 0, b seed 0)"),
        (made("a", 0, federation=SAME), made("a", 1, federation=OTHER), ""),  # seeds deal samples out anew
        (made("a", env={"unskew": "0.1.0"}), made("b", env={"unskew": "0.2.0"}), "versions of unskew (0.1.0, 0.2.0)"),
        (made("a", env={"unskew": "0.1.0"}), made("b"), ""),
        (made("a", 0), made("b", 2), "Methods have different seeds (a 0; b 2), and only those"),
    ],
)  # fmt: skip
def test_differences_beside_the_method_are_said(a, b, says):
    """40 rounds led 4 rounds by 20 points "after 4 rounds", and the page warned of nothing."""
    listed = doubts(a, b)
    assert len(listed) == bool(says)
    assert says in "".join(listed)


def test_what_tuning_chose_for_each_method_is_no_doubt(tmp_path):
    entries = {m: {"best": {"lr": lr}} for m, lr in (("a", 0.1), ("b", 0.2))}
    (tmp_path / "tuning.json").write_text(json.dumps({"methods": entries}))
    a, b = (replace(made(m, lr=lr), path=tmp_path / f"{m}--s0") for m, lr in (("a", 0.1), ("b", 0.2)))
    assert doubts(a, b) == []
    assert len(doubts(a, replace(b, config={**b.config, "epochs": 1}))) == 1
    assert len(doubts(a, made("b", lr=0.2))) == 1  # it was not tuned


def test_pairs_of_seeds_are_counted_where_they_are_not_all():
    runs = [made("a", 0, [0.5]), made("a", 1, [0.7]), made("b", 1, [0.1]), made("b", 3, [0.2])]
    assert "b and a are paired in 1 of 2 seeds." in results_table.note(summary_table(runs))


FEDERATION = {
    "name": "digits",
    "skew": "iid",
    "clients": 1,
    "names": ["a"],
    "classes": ["0"],
    "labels": [[9]],
    "test": 8,
    "sizes": {"train": [9], "test": [8]},
}


def whole(method, seed, asked=40, **config):
    plain = run(method, seed, [0.4] * asked)
    return replace(plain, config={**plain.config, **config})


def ended(method, seed, last, asked=40, **config):
    """A run that was asked for so many rounds and ended after `last` of them."""
    events = [{"t": last - 1, "code": "E323", "text": "why", "last": last}]
    return replace(whole(method, seed, last, **{"rounds": asked, **config}), events=events)


def test_runs_that_patience_ended_or_that_are_not_finished_are_named_with_their_rounds():
    """A method that patience ended in round 8 stood beside one of 28 rounds as its equal."""
    runs = [ended("a", s, t, patience=3) for s, t in ((0, 28), (1, 22))]
    half = whole("b", 1, 12, rounds=40)
    table = summary_table([*runs, whole("b", 0), half, whole("c", 0)])
    for line in (
        "a ended after 22 to 28 of 40 rounds, judged by these scores.",
        "b is not finished, and scored by the rounds that there are: seed 1 (round 12 of 40).",
    ):
        assert line in results_table.note(table)
        assert f"% {line}" in results_table.latex(table)
        assert line in page.page([*runs, half], "x")
    assert not summary_table([whole("c", 0)])[0].remarks


def test_scores_of_held_out_samples_do_not_pass_for_the_test_sets():
    held = replace(whole("a", 0, 2, validation=0.2), federation=FEDERATION)
    line = "Scored on 20% of the training samples, which were held out, and not on the test set."
    assert line in results_table.note(summary_table([held]))
    assert "The held-out part has 8 samples." in partition.sentence(held)
    plain = replace(whole("a", 0, 2), federation=FEDERATION)
    assert "The test set has 8 samples." in partition.sentence(plain)
    said = [str(reproducibility.build(context_of([r], "x")).html) for r in (held, plain)]
    assert ["those samples are meant" in text for text in said] == [True, False]


def scored(method, seed, own, common=20, **config):
    """A run of which so many clients were scored with their own models, and so many with the common one."""
    federation = {**FEDERATION, "clients": 21, "sizes": {"train": [9] * 21, "test": [8] * 20 + [0]}}
    clients = {
        (scope, "accuracy"): dict.fromkeys(range(n), 0.5)
        for scope, n in (("personal@client", own), ("global@client", common))
        if n
    }
    return replace(whole(method, seed, **config), federation=federation, clients=clients)


def test_means_over_fewer_clients_than_others_have_are_named():
    """Of a method that keeps weights they were means over clients that had taken part."""
    runs = [scored("a", 0, 20), scored("kept", 0, 12, 12), scored("kept", 1, 14, 14), scored("own", 0, 13)]
    text = results_table.note(summary_table(runs))
    assert "kept was scored at 12 to 14 of 20 clients with test samples, as the others never" in text
    assert "own (personal) was scored at 13 of 20" in text
    assert "a was scored" not in text
    half = scored("half", 0, 12, 12, rounds=90)  # the first rows of clients need not be the last
    assert "was scored" not in results_table.note(summary_table([half, scored("b", 0, 0, 0)]))
