"""What the page says in words, and the values that its pictures are drawn from, against cases by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from markupsafe import escape

from tests.report.test_summary import run
from unskew.report import page as report_page
from unskew.report.analysis.runs import Traffic
from unskew.report.analysis.summary import benefit_sentence
from unskew.report.page import page
from unskew.report.sections import (
    context_of,
    disclosure,
    measures,
    reproducibility,
)
from unskew.report.sections import rounds as rounds_section

FEDERATION = {
    "name": "digits",
    "skew": "classes:2",
    "clients": 3,
    "names": ["a", "b", "c"],
    "classes": ["0", "1", "2", "3"],
    "sizes": {"train": [1000, 20, 30], "test": [1, 1, 1]},
    "labels": [[990, 10, 0, 0], [20, 0, 0, 0], [0, 10, 10, 10]],
    "test": 1234,
}


def changed(r, **fields):
    """The run with some fields replaced."""
    return replace(r, **fields)


def rounds(*pairs):
    """Events of rounds, each (clients asked, clients that answered)."""
    return [{"t": t, "code": "round", "asked": a, "answered": b} for t, (a, b) in enumerate(pairs, 1)]


def result(*runs):
    return report_page.result_sentence(context_of(list(runs), "x")).replace("\u00a0", " ")


def seeds(method, *finals):
    return [run(method, seed, [value] * 12) for seed, value in enumerate(finals)]


def test_the_result_names_the_leader_and_the_closest_rival():
    """M17. The rival's differences to the leader are 0.2, -0.1, 0.3, 0, 0.1: t = 0.1 / (0.1581 / sqrt(5)) =
    1.414 at 4 degrees of freedom, p = .230; Holm's correction tests the other first, whose difference has no
    variance."""
    runs = [*seeds("far", *[0.1] * 5), *seeds("near", 0.6, 0.9, 0.5, 0.8, 0.7), *seeds("best", *[0.8] * 5)]
    assert (
        result(*runs)
        == "best reaches 80.0 ± 0.0 % global accuracy after 12 rounds on its data, 10.0 points ahead of near "
        "(5 seeds cannot tell them apart, p = .230)"
    )
    sure = [*seeds("near", 0.6, 0.61, 0.59, 0.6, 0.6), *seeds("best", *[0.8] * 5)]
    assert result(*sure).endswith("ahead of near (over 5 seeds, p < .001)")


@pytest.mark.parametrize(
    ("ours", "alone", "judged"),
    [
        ([0.72, 0.74], [0.2, 0.3], "federating pays, ahead in all 2 seeds by 44.0 to 52.0 points."),
        ([0.698, 0.706], [0.729, 0.733], "training alone is ahead in all 2 seeds by 2.7 to 3.1 points."),
        ([0.7, 0.9], [0.6, 0.5], "a is ahead in 2 of 2 seeds, by 25.0 ± 21.2 points in the mean."),
        ([0.7, 0.5, 0.5], [0.6, 0.6, 0.6], "ahead in 2 of 3 seeds, by 3.3 ± 11.5 points in the mean."),
        ([0.7], [0.8], "ahead by 10.0 points, but one seed cannot tell whether federating pays."),
        ([0.7, 0.7], [0.7, 0.7], "70.0 % and training alone 70.0 %: the two are equal."),
    ],
)
def test_whether_federating_pays_is_said(ours, alone, judged):
    """Of the best method at the clients, after the last round, against training alone in the same seeds."""
    federated = [
        r
        for seed, value in enumerate(ours)
        for r in (
            run("a", seed, [0.1, 0.8], client_mean=[0.99, value], own_mean=[0.1, 0.2]),
            run("b", seed, [0.9, 0.9], client_mean=[0.1, 0.1]),
        )
    ]
    local = [run("local", seed, [], own_mean=[0.01, value]) for seed, value in enumerate(alone)]
    context = context_of([*federated, *local, run("local", 7, [], own_mean=[0.99])], "x")
    assert benefit_sentence(context.summaries).endswith(judged)
    assert str(escape(benefit_sentence(context.summaries))) in page(context.runs, "x")
    assert benefit_sentence(context_of(federated, "x").summaries) == ""


@pytest.mark.parametrize(("tests", "verdict"), [(152, "cannot be told apart"), (1520, "federating pays")])
def test_a_lead_that_few_test_samples_may_show_by_chance_does_not_pay(tests, verdict):
    """By hand: 1.96 sqrt((0.76 * 0.24 + 0.7 * 0.3) / 154) = 9.9 points, ten times the samples 3.1; two seeds
    that agree to a tenth of a point change nothing."""
    runs = [
        replace(r, federation={**r.federation, "sizes": {"test": [tests // 2, tests // 2]}})
        for seed in range(2)
        for r in (
            run("a", seed, [0.8], client_mean=[0.76 + 0.001 * seed]),
            run("local", seed, [], own_mean=[0.7]),
        )
    ]
    sentence = benefit_sentence(context_of(runs, "x").summaries)
    assert verdict in sentence
    assert ("152 test samples, the same in all seeds, may show 9.9 by chance" in sentence) is (tests == 152)


def test_a_lead_on_many_images_of_few_patients_is_no_evidence():
    """1,520 images show it, 152 patients do not."""
    runs = [
        replace(r, federation={**r.federation, "sizes": {"test": [760, 760]}, "test_groups": 152})
        for seed in range(2)
        for r in (
            run("a", seed, [0.8], client_mean=[0.76 + 0.001 * seed]),
            run("local", seed, [], own_mean=[0.7]),
        )
    ]
    sentence = benefit_sentence(context_of(runs, "x").summaries)
    assert "cannot be told apart" in sentence
    assert "152 groups of test samples, the same in all seeds, may show 9.9 by chance" in sentence


def test_warnings_say_what_makes_the_numbers_doubtful():
    short = changed(run("a", 0, [0.5]), config={"method": "a", "seed": 0, "rounds": 4})
    dropped = changed(
        run("b", 0, [0.5] * 4),
        events=[{"t": 1, "code": c, "text": "x"} for c in ("E303", "E323", "E323", "E128")]
        + [{**rounds(([0, 1, 2, 3, 4], [0, 1, 2, 3]))[0], "received": 5}],
    )
    assert report_page.warnings(context_of([short, dropped, run("b", 1, [0.5] * 4)], "x")) == [
        "Methods have different seeds (a 0; b 0, 1), and only those that two methods share are paired.",
        "a is not finished, and scored by the rounds that there are: seed 0 (round 1 of 4).",
        "b: 1 of 5 replies were dropped.",
        "1 event such as a dropped reply or a skipped round is listed at the end.",
    ]
    assert report_page.warnings(context_of([run("a", 0, [0.5])], "x")) == []


def test_the_ledger_in_words():
    def traffic(way, share, in_rounds, reads="sum", guarantee="none"):
        t = np.arange(1, in_rounds + 1)
        bytes_ = np.full(in_rounds, 3000)
        return Traffic(way, share, reads, guarantee, t, bytes_, 2000, "3×4", "features", "class")

    moved = (
        traffic("down", "w", 10),
        traffic("up", "flea/z", 8, "each", "empirical"),
        traffic("up", "w", 9),
        traffic("up", "a/b", 1, "odd", "odd"),
    )
    scored = {("personal@client", "accuracy"): (np.array([5, 10]), np.array([0.5, 0.5]))}
    items = disclosure.items(changed(run("a", 0, [0.5] * 10), traffic=moved, metrics=scored))
    assert [(i.way, i.share, i.often, i.reads, i.guarantee, i.colour) for i in items] == [
        ("sends", "weights", "9 rounds", "their sum", "none", "none"),
        ("sends", "a/b", "1 round", "odd", "odd", ""),
        ("sends", "flea/z", "8 rounds", "each one", "empirical", "empirical"),
        ("sends", "number of samples", "9 rounds", "each one", "none", "none"),
        ("sends", "training loss", "9 rounds", "each one", "none", "none"),
        ("sends", "scores on test samples", "2 rounds", "each one", "none", "none"),
        ("receives", "weights", "every round", "", "", ""),
    ]
    assert (items[2].most, items[2].total) == ("2 KB", "24 KB")
    kinds = [("features", "all of a class")] * 3 + [("statistics", "all")] * 3 + [("", "")]
    assert [(i.kind, i.samples) for i in items] == kinds
    assert disclosure.items(changed(run("local", 0, [0.5]), traffic=moved)) == []


def test_bytes_so_far_include_the_round_itself():
    """Sent in rounds 1, 2 and 4, 100 bytes each way; evaluated in rounds 0, 2, 3 and 4."""
    sent = tuple(
        Traffic(way, "w", "sum", "none", np.array([1, 2, 4]), np.array([100, 100, 100]), 0)
        for way in ("up", "down")
    )
    r = changed(
        run("a"), traffic=sent, metrics={("global", "accuracy"): (np.array([0, 2, 3, 4]), np.full(4, 0.5))}
    )
    html = rounds_section.build(context_of([r], "x")).html
    assert '"l":["400 B","400 B","600 B"]' in html  # nothing was sent in round 0


def test_a_measure_is_told_by_its_last_value_and_one_that_is_new_by_its_name():
    def series(*values):
        return np.arange(1, len(values) + 1), np.array(values)

    metrics = {
        ("global", "accuracy"): series(0.5),
        ("measure", "my_own"): series(1.0, 2.0),
        ("measure", "diversity"): series(3.0, 4.5),
        ("measure", "cross_site/a>b"): series(0.5),
    }
    html = measures.build(context_of([changed(run("a"), metrics=metrics)], "x")).html
    assert html.index('<th scope="row">Weight diversity</th><td>4.5</td>') < html.index(
        '<th scope="row">My own</th><td>2</td>'
    )
    assert "<h3>My own, over rounds</h3><figure><svg" in html
    assert "a&gt;b" not in html
    assert measures.build(context_of([run("a")], "x")) is None


def test_settings_that_differ_and_the_commands_that_repeat_the_runs():
    runs = [
        changed(run(m, s), config={"method": m, "seed": s, "lr": lr, "epochs": 7, "clients": 3})
        for m, lr in (("a", 0.1), ("b", 0.2))
        for s in (0, 1)
    ]
    shared, differing = reproducibility.settings(context_of(runs, "x"))
    assert shared == {"epochs": 7, "clients": 3}
    assert differing == [("lr", ["0.1", "0.2"])]
    assert reproducibility.command(context_of(runs, "x")).splitlines() == [
        f"unskew run {m}--s{s}/config.yaml" for m in "ab" for s in (0, 1)
    ]
