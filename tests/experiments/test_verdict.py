"""Numbers are those of the runs, and claims are judged by them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.experiments.tables import SMALL
from unskew.engine.server.scored import Scored
from unskew.engine.server.used import Replies
from unskew.errors import UsageError
from unskew.experiments import tables, wording
from unskew.experiments.claims import Claim, Trend
from unskew.experiments.entries import entries_of
from unskew.experiments.files import read_experiment
from unskew.experiments.parsing import parse_experiment
from unskew.experiments.result import result_of
from unskew.experiments.verdict import Verdict, verdicts_of
from unskew.report.stats import Score


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
        replies=Replies(len(values), 4, 4),
        config={},
        rounds=len(values),
        asked=len(values),
        planned=len(values),
        finished=True,
        scored_at=Scored(3, 4, own=False) if values[:1] == [0.1] else None,
    )


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
    assert result["terms"][0].endswith("as the others never took part, or did not answer: even, Still at 3 of 4.")
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
    assert claim.margin(score) == pytest.approx(4)
    assert claim.margin(score | {"FedBN+FedRDN": 78.0}) == pytest.approx(-3)
    calm = Claim("calmer", "A", ("B", "C"), measure="stability")
    assert calm.margin({"A": 1.0, "B": 3.0, "C": 2.0}) == 1


def test_a_claim_is_about_the_best_of_the_others():
    assert Claim("best", "A", ("B", "C")).margin({"A": 3.0, "B": 1.0, "C": 2.5}) == 0.5
    less = Claim("least", "A", ("B",), less=(("C", "D"), ("E", "F")))
    score = {"A": 3.0, "B": 2.0, "C": 9.0, "D": 1.0, "E": 5.0, "F": 1.0}
    assert less.margin(score) == 4 - 1  # the smaller of the two other leads, 8 and 4, less its own


def test_of_errors_the_lower_is_ahead_and_stability_is_no_error():
    """The paper's numbers are of the table's own measure, so a claim on stability has none."""
    claims = [Claim("less", "A", ("B",)), Claim("calmer", "A", ("B",), measure="stability")]
    experiment = SimpleNamespace(claims=claims, rows=[SimpleNamespace(name="r")], measure="mean10", metric="rmse")
    entries = [
        SimpleNamespace(
            row="r", method=method, paper=paper, ours=Score(ours, 0, 2), stability=Score(calm, 0, 2), lower=True
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
    """A mean over clients is in the unit of the main score: of an error, the method that errs more was held to be better."""
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
    assert {row: ahead[row, "A"] for row in ("error", "explained", "spread")} == pytest.approx(verdict.margins)


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
    scores = {"large": {"A": 80.0, "B": 82.0}, "middle": {"A": 70.0, "B": 78.0}, "small": {"A": 71.0, "B": 77.0}}
    scores |= {"one": {"A": 50.0}, "two": {"A": 40.0, "B": math.nan}}
    margins = falls.margins(scores)
    assert margins == {"large to middle": 10, "middle to small": -1, "one to two": 10}
    assert Verdict(falls, margins, {}).word == "reproduced in 2 of 3 steps"
    less = Trend("falls more than B", "A", (("large", "middle", "small"), ("one", "two")), against="B")
    assert less.margins(scores) == {"large to middle": 6, "middle to small": -2}
    assert falls.margins({k: v for k, v in scores.items() if k != "middle"})["large to small"] == 9
    assert Verdict(falls, falls.margins({}), {}).word == "not run"
    with pytest.raises(UsageError, match="no row 'small'"):
        parse_experiment(
            "small", SMALL.replace("open:", '  - {text: "falls", falls: FedAvg, along: [[even, small]]}\nopen:')
        )
