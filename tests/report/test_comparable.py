"""What a page says of runs that are no fair comparison: a headline led by the untold difference would be
believed."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.report.test_summary import run
from unskew.config import FIELDS
from unskew.report import page
from unskew.report.analysis import results_table
from unskew.report.analysis.summary import summary_table
from unskew.report.sections import context_of


def made(method, seed=0, accuracy=(0.5,), federation=None, env=None, **config):
    one = run(method, seed, accuracy)
    return replace(one, config={**one.config, **config}, federation=federation or {}, env=env or {})


def doubts(*runs):
    return page.comparability_doubts(context_of(list(runs), "x"))


def test_runs_that_differ_in_their_methods_alone_bring_no_doubt():
    same = {"clients": 2, "sizes": {"train": [3, 4], "test": [1, 1]}, "test": 2}
    own = {"workers": 4, "device": "cuda", "measure": "separation", "metrics": "ece", "set": {"b": {"mu": 1}}}
    assert doubts(made("a", federation=same), made("b", federation=same, **own)) == []
    assert doubts(made("a", lr=0.1), made("a", lr=0.05)) == []  # what is compared, and what names the rows


def test_scores_on_other_samples_cannot_be_compared():
    """Accuracy on held-out training samples stood beside accuracy on the test set."""
    for key, value, what in (
        ("validation", 0.2, "shares of training samples held out to score them (0.0, 0.2)"),
        ("partition_seed", 7, "seeds of the partition (7, None)"),
        ("samples", 9, "numbers of samples (9, None)"),
        ("skew", "iid", "partitions (dirichlet:0.1, iid)"),
    ):
        sentence = f"These runs have different {what}, so their scores cannot be compared."
        assert doubts(made("a"), made("b", **{key: value})) == [sentence]
        assert doubts(made("a"), made("a", **{key: value})) == [sentence]


def test_methods_that_trained_otherwise_are_told_apart_by_more_than_the_method():
    """40 rounds led 4 rounds by 20 points "after 4 rounds", and the page warned of nothing."""
    assert doubts(made("a"), made("b", rounds=40, lr=0.5, availability="bernoulli:0.5")) == [
        "Not only the methods of these runs differ (availability bernoulli:0.5, full; rounds 1, 40; lr 0.05,"
        " 0.5), so a gap between scores need not be the methods'."
    ]
    assert doubts(made("a"), made("b", model="mlp")) != []
    assert (
        doubts(made("a"), made("b", lr=FIELDS["lr"].default)) == []
    )  # a run of before there was the setting
    assert doubts(made("a"), made("local", rounds=40)) == []  # a reference


def test_what_tuning_chose_for_each_method_is_no_doubt(tmp_path):
    entries = {m: {"best": {"lr": lr}} for m, lr in (("a", 0.1), ("b", 0.2))}
    (tmp_path / "tuning.json").write_text(json.dumps({"methods": entries}))
    a, b = (replace(made(m, lr=lr), path=tmp_path / f"{m}--s0") for m, lr in (("a", 0.1), ("b", 0.2)))
    assert doubts(a, b) == []
    assert len(doubts(a, replace(b, config={**b.config, "epochs": 1}))) == 1
    assert len(doubts(a, made("b", lr=0.2))) == 1  # it was not tuned


def test_data_that_changed_under_the_same_name_are_seen():
    before = {"clients": 2, "sizes": {"train": [3, 4]}, "labels": [[3, 0], [0, 4]]}
    after = {**before, "labels": [[2, 1], [0, 4]]}
    assert doubts(made("a", federation=before), made("b", federation=after)) == [
        "Runs of equal settings hold different samples (a seed 0, b seed 0), so their scores cannot be"
        " compared."
    ]
    assert (
        doubts(made("a", 0, federation=before), made("a", 1, federation=after)) == []
    )  # seeds deal samples out anew
    pooled = {"clients": 1, "sizes": {"train": [7]}}
    assert doubts(made("a", federation=before), made("centralised", federation=pooled)) == []


def test_versions_that_are_mixed_are_said():
    assert doubts(made("a", env={"unskew": "0.1.0"}), made("b", env={"unskew": "0.2.0"})) == [
        "These runs are of different versions of unskew (0.1.0, 0.2.0)."
    ]
    assert doubts(made("a", env={"unskew": "0.1.0"}), made("b")) == []


def test_seeds_without_a_pair_are_said():
    """As many seeds of one method as of the other, none of them the same: "one seed cannot tell"."""
    runs = [made("a", 0, [0.5]), made("a", 1, [0.7]), made("b", 2, [0.1]), made("b", 3, [0.2])]
    assert doubts(*runs) == [
        "Methods have different seeds (a 0, 1; b 2, 3), and only those that two methods share are paired."
    ]
    end = "ahead of b; no seed of one is a seed of the other, so they cannot be paired"
    assert page.result_sentence(context_of(runs, "x")).endswith(end)
    rows = summary_table([*runs[:3], made("b", 1, [0.2])])
    assert "\nb and a are paired in 1 of 2 seeds.\n" in results_table.note(rows) + "\n"
    assert "paired in" not in results_table.note(
        summary_table([*runs[:2], made("b", 0, [0.1]), made("b", 1, [0.1])])
    )
