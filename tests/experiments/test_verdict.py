"""Numbers are those of the runs, and claims are judged by them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.experiments.tables import SMALL
from unskew.errors import UsageError
from unskew.experiments import tables, wording
from unskew.experiments.entries import Bounds, Entry, Verdict, entries_of, verdicts_of
from unskew.experiments.experiment import Claim, Trend, margins
from unskew.experiments.files import parse_experiment, read_experiment
from unskew.experiments.result import result_of
from unskew.report.analysis.stats import Score
from unskew.runs.coverage import Coverage, UsedReplies


def run(seed, values):
    rounds = np.arange(1, len(values) + 1)
    return SimpleNamespace(
        seed=seed,
        metric="accuracy",
        path=Path(f"{values}-{seed}"),
        series=lambda scope, metric: (rounds, np.array(values)),
        evaluated=bool(values),
        bytes_by_round=lambda way: (rounds, np.array([1e6] * len(values))),
        privacy={},
        replies=UsedReplies(len(values), 4, 4),
        config={},
        rounds=len(values),
        asked=len(values),
        planned=len(values),
        finished=True,
        scored_at=Coverage(3, 4, own=False) if values[:1] == [0.1] else None,
    )


def met(claim, score):
    """By how much a claim is met in a row with these scores."""
    return margins(claim, {"row": score})["row"]


def test_numbers_are_those_of_the_runs():
    experiment = parse_experiment("small", SMALL)
    runs = {
        ("even", "FedAvg"): [run(0, [0.2, 0.6, 0.5]), run(1, [0.3, 0.4, 0.7])],
        ("even", "Still"): [run(0, [0.1, 0.1, 0.1]), run(1, [0.1, 0.2, 0.1])],
    }
    entries = {e.method: e for e in entries_of(experiment, runs)}
    first = entries["FedAvg"]
    assert first.ours.mean == pytest.approx(65)
    assert first.last.mean == pytest.approx(60)
    assert first.gap == pytest.approx(15)
    assert first.ahead == pytest.approx(50)
    assert math.isnan(first.p)  # from two seeds
    assert math.isnan(entries["Still"].p)
    assert math.isnan(entries["Still"].paper)
    learning, still = verdicts_of(experiment, list(entries.values()))
    assert learning.margins == {"even": pytest.approx(50)}
    assert (learning.word, still.word) == ("reproduced", "not reproduced")
    assert (
        replace(learning, margins={"even": 50.0, "odd": 0.0}).word == "reproduced in 1 of 2 rows"
    )  # a tie exceeds nothing
    facts = {
        "scale": 0.5,
        "seeds": 2,
        "command": "unskew",
        "unskew": "1",
        "made_by": {"1": 3, "0.9": 1},
        "date": "d",
        "machine": "m",
        "hours": 1.0,
    }
    result = result_of(experiment, list(entries.values()), [learning, still], runs, facts)
    assert "SCALED: 0.5" in tables.plain(result)
    assert result["terms"][0].endswith(
        "as the others never took part, or did not answer: even, Still at 3 of 4."
    )
    assert result["terms"][0] in tables.plain(result)
    assert r"65.0 $\pm$ 7.1 \textcolor{gray}{(50.0)}" in tables.latex(result)
    assert result["curves"]["even"]["FedAvg"][1] == [[1, 30.0], [2, 40.0], [3, 70.0]]
    assert "Still,,15,7.071,2" in tables.as_csv(result)
    assert wording.rounds(result) == "3 (0.5 of the paper's)"
    assert wording.rounds({**result, "scale": 1}) == "3"


def test_a_claim_is_reproduced_where_it_holds_in_every_row():
    claim = Claim("a", "A", ("B",), by=2.0)
    assert Verdict(claim, {"x": 3.0, "y": 2.0}, {}).word == "reproduced"
    assert Verdict(claim, {"x": 3.0, "y": 1.9}, {}).word == "reproduced in 1 of 2 rows"
    assert Verdict(claim, {"x": -3.0}, {}).word == "not reproduced"
    assert Verdict(claim, {}, {}).word == "not run"


def test_a_claim_may_be_that_a_gain_is_smaller_than_others():
    claim = read_experiment("fedrdn-table1").claims[-1]
    score = {"FedAvg": 60.0, "FedAvg+FedRDN": 65.0, "FedBN": 70.0, "FedBN+FedRDN": 71.0}
    assert claim.methods == ("FedBN+FedRDN", "FedBN", "FedAvg+FedRDN", "FedAvg")
    assert met(claim, score) == pytest.approx(4)
    assert met(claim, score | {"FedBN+FedRDN": 78.0}) == pytest.approx(-3)
    calm = Claim("calmer", "A", ("B", "C"), measure="stability")
    assert met(calm, {"A": 1.0, "B": 3.0, "C": 2.0}) == 1


def test_a_claim_is_about_the_best_of_the_others():
    assert met(Claim("best", "A", ("B", "C")), {"A": 3.0, "B": 1.0, "C": 2.5}) == 0.5
    less = Claim("least", "A", ("B",), less=(("C", "D"), ("E", "F")))
    score = {"A": 3.0, "B": 2.0, "C": 9.0, "D": 1.0, "E": 5.0, "F": 1.0}
    assert met(less, score) == 4 - 1  # the smaller of the two other leads, 8 and 4, less its own


def attacked(method, score, low, high, row="even", lower=False):
    """An entry whose score is an attack's, with its interval over samples."""
    one = Score(score, 0.0, 1)
    bounds = Bounds(low, high, 50.0, 100.0)
    return Entry(row, method, math.nan, one, one, one, one, one, 0.0, 0.0, math.nan, bounds, lower)


def judge(claim, *entries, paper=SMALL):
    experiment = parse_experiment("small", paper)
    return verdicts_of(replace(experiment, claims=(claim,)), entries)[0]


def test_a_margin_that_may_be_chance_is_unclear():
    """Two of four records matched, where one in four was, were a claim reproduced."""
    ahead = Claim("tells more", "FedAvg", ("Still",))
    by_chance = judge(ahead, attacked("FedAvg", 50.0, 15.0, 85.0), attacked("Still", 25.0, 4.6, 69.9))
    assert (by_chance.word, by_chance.margins) == ("unclear", {"even": 25.0})
    assert (
        judge(ahead, attacked("FedAvg", 90.0, 85.0, 94.0), attacked("Still", 50.0, 45.0, 55.0)).word
        == "reproduced"
    )
    refuted = judge(ahead, attacked("FedAvg", 50.0, 45.0, 55.0), attacked("Still", 90.0, 85.0, 94.0))
    assert refuted.word == "not reproduced"
    # the distances that count are those towards the other score, and they add up by their squares: 3 and 4
    # make 5
    near = [attacked("FedAvg", 60.0, 57.0, 99.0), attacked("Still", 54.9, 10.0, 58.9)]
    assert judge(ahead, *near).word == "reproduced"
    assert judge(ahead, near[0], attacked("Still", 55.1, 10.0, 59.1)).word == "unclear"
    assert judge(replace(ahead, by=5.0), *near).word == "unclear"
    behind = attacked("Still", 60.0, 57.0, 99.0)
    assert judge(ahead, attacked("FedAvg", 55.1, 10.0, 59.1), behind).word == "unclear"
    assert judge(ahead, attacked("FedAvg", 54.9, 10.0, 58.9), behind).word == "not reproduced"
    named = replace(ahead, measure="best")  # the table's own score, by its name
    assert judge(named, near[0], attacked("Still", 55.1, 10.0, 59.1)).word == "unclear"
    assert (
        judge(replace(ahead, measure="last"), near[0], attacked("Still", 55.1, 10.0, 59.1)).word
        == "reproduced"
    )
    # a plain score beside an attack's adds nothing, and of two plain ones the means decide
    plain = replace(near[1], bounds=None)
    assert judge(ahead, near[0], plain).word == "reproduced"
    assert (
        judge(ahead, replace(near[0], bounds=None), replace(plain, ours=Score(59.9, 0, 1))).word
        == "reproduced"
    )


def test_of_an_attacks_error_the_distances_turn_with_the_sign():
    nearer = Claim("comes nearer", "FedAvg", ("Still",))
    ours = attacked("FedAvg", 0.10, 0.01, 0.11, lower=True)
    assert judge(nearer, ours, attacked("Still", 0.13, 0.12, 0.9, lower=True)).word == "reproduced"
    assert judge(nearer, ours, attacked("Still", 0.13, 0.09, 0.14, lower=True)).word == "unclear"


def test_a_step_of_attacked_rows_may_be_unclear():
    rows = replace(parse_experiment("small", SMALL).rows[0], name="odd")
    falls = Trend("falls", "FedAvg", (("even", "odd"),))
    experiment = parse_experiment("small", SMALL)
    experiment = replace(experiment, claims=(falls,), rows=(*experiment.rows, rows))

    def word(second):
        return verdicts_of(experiment, [attacked("FedAvg", 60.0, 57.0, 99.0), second])[0].word

    assert word(attacked("FedAvg", 54.9, 10.0, 58.9, row="odd")) == "reproduced"
    assert word(attacked("FedAvg", 55.1, 10.0, 59.1, row="odd")) == "unclear"


def test_rows_may_be_unclear_beside_others():
    claim, found = Claim("a", "A", ("B",)), {"x": 3.0, "y": 1.0, "z": -1.0}
    assert Verdict(claim, found, {}, frozenset("y")).word == "reproduced in 1 of 3 rows, unclear in 1"
    assert Verdict(claim, found, {}, frozenset("xyz")).word == "unclear"
    assert Verdict(claim, found, {}, frozenset("xy")).word == "reproduced in 0 of 3 rows, unclear in 2"


def test_of_errors_the_lower_is_ahead_and_stability_is_no_error():
    """The paper's numbers are of the table's own measure, so a claim on stability has none."""
    claims = [Claim("less", "A", ("B",)), Claim("calmer", "A", ("B",), measure="stability")]
    experiment = SimpleNamespace(
        claims=claims, rows=[SimpleNamespace(name="r")], measure="mean10", metric="rmse"
    )
    common = {"row": "r", "lower": True, "bounds": None}
    entries = [
        SimpleNamespace(
            method=method, paper=paper, ours=Score(ours, 0, 2), stability=Score(calm, 0, 2), **common
        )
        for method, paper, ours, calm in (("A", 5.0, 2.0, 1.0), ("B", 7.0, 3.0, 4.0))
    ]
    less, calmer = verdicts_of(experiment, entries)
    assert (less.margins, less.paper) == ({"r": 1}, {"r": 2})
    assert calmer.margins == {"r": 3}
    assert math.isnan(calmer.paper["r"])


ERRORS = """
methods: {A: fedavg, B: fedprox}
unit: number
metric: mean
scope: global@client
settings: {data: digits}
rows:
  error: {published: {A: 5.0, B: 7.0}}
  explained: {scope: global, metric: r2, published: {A: 0.9, B: 0.7}}
  spread: {metric: std}
claims:
  - {text: "A is better", better: A, than: [B]}
"""


def of_errors(method, seed, error):
    """A run of a regression: a smaller error goes with a larger R2."""
    values = {"mean": error, "r2": 1 - error / 10, "std": error / 2}
    rounds = np.array([1])
    made = run(seed, [])
    made.metric, made.path = "rmse", Path(f"{method}-{seed}")
    made.series = lambda scope, metric: (rounds, np.array([values[metric]]))
    return made


def test_which_way_is_better_is_asked_of_what_each_row_reports():
    """A mean over clients is in the unit of the main score: of an error, the method that errs more was held
    to be better."""
    experiment = parse_experiment("errors", ERRORS)
    runs = {
        (row.name, method): [of_errors(method, seed, error + seed) for seed in (0, 1)]
        for row in experiment.rows
        for method, error in (("A", 2.0), ("B", 3.0))
    }
    entries = entries_of(experiment, runs)
    ahead = {(e.row, e.method): e.ahead for e in entries}
    (verdict,) = verdicts_of(experiment, entries)
    assert verdict.word == "reproduced"
    assert verdict.margins == pytest.approx({"error": 1, "explained": 0.1, "spread": 0.5})
    assert verdict.paper["error"] == pytest.approx(2)
    assert verdict.paper["explained"] == pytest.approx(0.2)
    assert {row: ahead[row, "A"] for row in ("error", "explained", "spread")} == pytest.approx(
        verdict.margins
    )


def test_a_lead_is_over_the_seeds_that_both_methods_have():
    """Seed 0 is the hard one, and the run of B that had it has no score."""
    experiment = parse_experiment("small", SMALL)
    ours, theirs = [0.1, 0.7, 0.7, 0.7, 0.7, 0.71], [math.nan, 0.6, 0.6, 0.6, 0.6, 0.6]
    runs = {
        ("even", "FedAvg"): [run(seed, [value]) for seed, value in enumerate(ours)],
        ("even", "Still"): [run(seed, [] if math.isnan(v) else [v]) for seed, v in enumerate(theirs)],
    }
    first, second = entries_of(experiment, runs)
    assert (first.ahead, second.ahead) == (pytest.approx(10.2), pytest.approx(-10.2))
    assert first.p < 0.001


def test_a_claim_may_be_along_rows():
    falls = Trend("falls", "A", (("large", "middle", "small"), ("one", "two")))
    scores = {
        "large": {"A": 80.0, "B": 82.0},
        "middle": {"A": 70.0, "B": 78.0},
        "small": {"A": 71.0, "B": 77.0},
    }
    scores |= {"one": {"A": 50.0}, "two": {"A": 40.0, "B": math.nan}}
    found = margins(falls, scores)
    assert found == {"large to middle": 10, "middle to small": -1, "one to two": 10}
    assert Verdict(falls, found, {}).word == "reproduced in 2 of 3 steps"
    less = Trend("falls more than B", "A", (("large", "middle", "small"), ("one", "two")), against="B")
    assert margins(less, scores) == {"large to middle": 6, "middle to small": -2}
    assert margins(falls, {k: v for k, v in scores.items() if k != "middle"})["large to small"] == 9
    assert Verdict(falls, margins(falls, {}), {}).word == "not run"
    with pytest.raises(UsageError, match="no row 'small'"):
        parse_experiment(
            "small",
            SMALL.replace("open:", '  - {text: "falls", falls: FedAvg, along: [[even, small]]}\nopen:'),
        )
