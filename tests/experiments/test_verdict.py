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
from unskew.experiments import pages, verdicts
from unskew.experiments.experiment import Claim, Trend, margins
from unskew.experiments.files import parse_experiment, read_experiment
from unskew.experiments.result import entries_of, result_of, with_verdicts
from unskew.runs.score_coverage import Coverage, UsedReplies


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
    entries = {e["method"]: e for e in entries_of(experiment, runs)}
    first = entries["FedAvg"]
    assert first["ours"]["mean"] == pytest.approx(65)
    assert first["last"]["mean"] == pytest.approx(60)
    assert first["gap"] == pytest.approx(15)
    assert first["ahead"] == pytest.approx(50)
    assert math.isnan(first["p"])  # from two seeds
    assert math.isnan(entries["Still"]["paper"])
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
    result = result_of(experiment, runs, facts)
    learning, still = result["claims"]
    assert learning["margins"] == {"even": pytest.approx(50)}
    assert (learning["verdict"], still["verdict"]) == ("agrees so far", "disagrees so far")
    assert (learning["seeds"], learning["rounds"]) == (2, 0.5)
    assert "SCALED: 0.5" in pages.plain(result)
    assert result["terms"][0].startswith("even, Still was scored at 3 of 4 clients")
    assert result["terms"][0] in pages.plain(result)
    assert result["curves"]["even"]["FedAvg"][1] == [[1, 30.0], [2, 40.0], [3, 70.0]]


def stored(curves, claims, **changes):
    """A stored result of accuracies. curves: by row and method, the values by round of each seed."""
    measure = changes.get("measure", "best")
    points = {
        row: {m: [[[t, v] for t, v in enumerate(seed, 1)] for seed in seeds] for m, seeds in methods.items()}
        for row, methods in curves.items()
    }
    entries = []
    for row, methods in points.items():
        for method, seeds in methods.items():
            names = ("last", "best", "mean10", "stability")
            each = {name: [verdicts._of_seed(seed, name, False) for seed in seeds] for name in names}
            scores = {name: {"mean": sum(v) / len(v), "std": 0.0, "n": len(v)} for name, v in each.items()}
            entries.append({"row": row, "method": method, "paper": None, "ours": scores[measure], **scores})
    result = {"measure": measure, "scale": 1.0, "rows": {row: {} for row in curves}, "entries": entries}
    return with_verdicts({**result, "curves": points, "claims": [], **changes}, claims)


def words(*given, **changes):
    return [record["verdict"] for record in stored(*given, **changes)["claims"]]


CLEAR = {"A": [[60.0], [61.0], [62.0]], "B": [[50.0], [51.0], [53.0]]}
AHEAD, BEHIND = Claim("a", "A", ("B",)), Claim("b", "B", ("A",))


def test_a_claim_is_reproduced_with_three_seeds_all_rounds_and_an_interval_that_excludes_chance():
    """Margins 10, 10, 9: mean 9.667, deviation 0.577, Student's 4.303 / sqrt(3) times which is 1.434."""
    (record,) = stored({"x": CLEAR}, [AHEAD])["claims"]
    assert (record["verdict"], record["seeds"], record["rounds"]) == ("reproduced", 3, 1)
    assert record["margins"]["x"] == pytest.approx(29 / 3)
    assert record["intervals"]["x"] == pytest.approx([29 / 3 - 1.434, 29 / 3 + 1.434], abs=1e-3)
    assert words({"x": CLEAR}, [BEHIND]) == ["not reproduced"]
    assert words({"x": CLEAR}, [AHEAD, BEHIND], scale=0.5) == ["agrees so far", "disagrees so far"]
    rows = {"x": {"share": 0.3}}
    assert words({"x": CLEAR}, [AHEAD, BEHIND], rows=rows) == ["agrees so far", "disagrees so far"]
    two = {method: seeds[:2] for method, seeds in CLEAR.items()}
    assert words({"x": two}, [AHEAD, BEHIND]) == ["agrees so far", "disagrees so far"]
    wide = {"A": [[60.0], [61.0], [50.0]], "B": [[50.0], [51.0], [53.0]]}  # margins 10, 10, -3
    assert words({"x": wide}, [AHEAD, BEHIND]) == ["agrees so far", "disagrees so far"]
    assert words({"x": CLEAR}, [replace(AHEAD, by=9.0), replace(AHEAD, by=12.0)]) == [
        "agrees so far",
        "not reproduced",
    ]


def test_a_claim_may_hold_in_some_rows():
    swapped = {"A": CLEAR["B"], "B": CLEAR["A"]}
    level = {"A": CLEAR["A"], "B": CLEAR["A"]}  # a tie exceeds nothing
    assert words({"x": CLEAR, "y": swapped}, [AHEAD]) == ["reproduced in 1 of 2 rows"]
    assert words({"x": CLEAR, "y": level}, [AHEAD]) == ["agrees so far in 1 of 2 rows"]
    assert words({"x": CLEAR}, [Claim("c", "C", ("A",))]) == ["not run"]


def test_what_was_superseded_gives_no_verdict():
    """One row of two, a method of the claim, or another method, which changes nothing."""
    found = stored({"x": CLEAR, "y": CLEAR}, [AHEAD], superseded={"x": "the attack is another"})["claims"]
    assert found[0]["verdict"] == "reproduced"
    assert list(found[0]["margins"]) == ["y"]
    (record,) = stored({"x": CLEAR}, [AHEAD], superseded={"B": "corrected"})["claims"]
    assert (record["verdict"], record["margins"]) == ("no verdict", {})
    assert words({"x": CLEAR}, [AHEAD], superseded={"C": "corrected"}) == ["reproduced"]


def test_windows_fit_the_rounds_of_a_run():
    """A rises from 0 to 38 in 20 rounds and stays, B swings by 1: over all rounds A is the less steady."""
    rising = [*(2.0 * t for t in range(20)), *[38.0] * 20]
    swinging = [20.0 + t % 2 for t in range(40)]
    calm = Claim("steadier", "A", ("B",), measure="stability")
    (record,) = stored({"x": {"A": [rising], "B": [swinging]}}, [calm])["claims"]
    assert record["verdict"] == "agrees so far"
    assert record["margins"]["x"] == pytest.approx(np.std(swinging[-10:], ddof=1))
    # 10 rounds: the mean of the last ten is that of the climb, at whose end A is ahead
    late = {"A": [[*[0.0] * 8, 60.0, 60.0]], "B": [[30.0] * 10]}
    assert words({"x": late}, [AHEAD], measure="mean10") == ["unclear"]
    assert words({"x": late}, [AHEAD], measure="last") == ["agrees so far"]
    whole = {m: [seed * 5 for seed in seeds] for m, seeds in late.items()}
    assert words({"x": whole}, [AHEAD], measure="mean10") == ["disagrees so far"]


def test_every_verdict_of_the_index_follows_from_the_kept_numbers():
    for result in pages.results_in(Path(__file__).parents[2] / "docs" / "results"):
        assert with_verdicts(result) == result, result["page"]
        for entry in result["entries"]:
            seeds = result["curves"][entry["row"]][entry["method"]]
            for name in () if entry.get("bounds") else ("last", "best", "mean10", "stability"):
                each = [verdicts._of_seed(seed, name, bool(entry.get("lower"))) for seed in seeds]
                if entry[name]["mean"] is not None:
                    assert entry[name]["n"] == len(each)
                    assert entry[name]["mean"] == pytest.approx(np.mean(each), rel=1e-3, abs=2e-3)


def test_a_claim_may_be_that_a_gain_is_smaller_than_others():
    claim = read_experiment("fedrdn-table1").claims[-1]
    score = {"FedAvg": 60.0, "FedAvg+FedRDN": 65.0, "FedBN": 70.0, "FedBN+FedRDN": 71.0}
    assert claim.methods == ("FedBN+FedRDN", "FedBN", "FedAvg+FedRDN", "FedAvg")
    assert met(claim, score) == pytest.approx(4)
    assert met(claim, score | {"FedBN+FedRDN": 78.0}) == pytest.approx(-3)
    calm = Claim("calmer", "A", ("B", "C"), measure="stability")
    assert met(calm, {"A": 1.0, "B": 3.0, "C": 2.0}) == 1


def attacked(method, score, low, high, row="even", lower=False):
    """An entry whose score is an attack's, with its interval over samples."""
    one = {"mean": score, "std": 0.0, "n": 1}
    scores = dict.fromkeys(("ours", "last", "best", "mean10", "stability"), one)
    bounds = {"low": low, "high": high, "floor": 50.0, "ceiling": 100.0}
    return {"row": row, "method": method, "paper": None, "bounds": bounds, "lower": lower, **scores}


def judge(claim, *entries):
    rows = {entry["row"]: {} for entry in entries}
    result = {"measure": "best", "scale": 1.0, "rows": rows, "entries": entries, "curves": {}}
    return SimpleNamespace(**verdicts.judge(result, [claim])[0])


def test_a_margin_that_may_be_chance_is_unclear():
    """Two of four records matched, where one in four was, were a claim reproduced."""
    ahead = Claim("tells more", "FedAvg", ("Still",))
    by_chance = judge(ahead, attacked("FedAvg", 50.0, 15.0, 85.0), attacked("Still", 25.0, 4.6, 69.9))
    assert (by_chance.verdict, by_chance.margins) == ("unclear", {"even": 25.0})
    assert (
        judge(ahead, attacked("FedAvg", 90.0, 85.0, 94.0), attacked("Still", 50.0, 45.0, 55.0)).verdict
        == "agrees so far"
    )
    refuted = judge(ahead, attacked("FedAvg", 50.0, 45.0, 55.0), attacked("Still", 90.0, 85.0, 94.0))
    assert refuted.verdict == "disagrees so far"
    # the distances that count are those towards the other score, and they add up by their squares: 3 and 4
    # make 5
    near = [attacked("FedAvg", 60.0, 57.0, 99.0), attacked("Still", 54.9, 10.0, 58.9)]
    assert judge(ahead, *near).verdict == "agrees so far"
    assert judge(ahead, near[0], attacked("Still", 55.1, 10.0, 59.1)).verdict == "unclear"
    assert judge(replace(ahead, by=5.0), *near).verdict == "unclear"
    behind = attacked("Still", 60.0, 57.0, 99.0)
    assert judge(ahead, attacked("FedAvg", 55.1, 10.0, 59.1), behind).verdict == "unclear"
    assert judge(ahead, attacked("FedAvg", 54.9, 10.0, 58.9), behind).verdict == "disagrees so far"
    named = replace(ahead, measure="best")  # the table's own score, by its name
    assert judge(named, near[0], attacked("Still", 55.1, 10.0, 59.1)).verdict == "unclear"
    assert (
        judge(replace(ahead, measure="last"), near[0], attacked("Still", 55.1, 10.0, 59.1)).verdict
        == "agrees so far"
    )
    # a plain score beside an attack's adds nothing, and of two plain ones the means decide
    plain = {**near[1], "bounds": None}
    assert judge(ahead, near[0], plain).verdict == "agrees so far"
    assert (
        judge(
            ahead, {**near[0], "bounds": None}, {**plain, "ours": {"mean": 59.9, "std": 0.0, "n": 1}}
        ).verdict
        == "agrees so far"
    )


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
    """A mean over clients is in the main score's unit: of errors, the larger was held to be better."""
    experiment = parse_experiment("errors", ERRORS)
    runs = {
        (row.name, method): [of_errors(method, seed, error + seed) for seed in (0, 1)]
        for row in experiment.rows
        for method, error in (("A", 2.0), ("B", 3.0))
    }
    ahead = {(e["row"], e["method"]): e["ahead"] for e in entries_of(experiment, runs)}
    (record,) = result_of(experiment, runs, {"scale": 1.0, "seeds": 2})["claims"]
    verdict = SimpleNamespace(**record)
    assert verdict.verdict == "agrees so far"
    assert verdict.margins == pytest.approx({"error": 1, "explained": 0.1, "spread": 0.5})
    assert verdict.paper["error"] == pytest.approx(2)
    assert verdict.paper["explained"] == pytest.approx(0.2)
    assert {row: ahead[row, "A"] for row in ("error", "explained", "spread")} == pytest.approx(
        verdict.margins
    )


BYTES = """
methods: {FedAvg: fedavg, Costly: fedprox}
measure: last
unit: number
metric: bytes
base: FedAvg
rows: {one: {settings: {data: digits}}}
claims:
  - {text: "a twentieth more at most", better: Costly, than: [FedAvg], by: -0.05}
  - {text: "a fifth more at most", better: Costly, than: [FedAvg], by: -0.2}
  - {text: "less", better: FedAvg, than: [Costly]}
"""


def sending(seed, method, each):
    """A run with these bytes in each of its two rounds."""
    made = run(seed, [])
    made.path = Path(f"{method}-{seed}")
    made.bytes_by_round = lambda way=None: (np.array([1, 2]), np.cumsum(each).astype(float))
    return made


def test_bytes_are_compared_as_multiples_of_another_methods():
    """(120 + 321) / (200 + 200) on average, though in round 1 fewer were sent: the whole run counts."""
    experiment = parse_experiment("bytes", BYTES)
    runs = {
        ("one", "FedAvg"): [sending(seed, "FedAvg", [200, 200]) for seed in (0, 1, 2)],
        ("one", "Costly"): [sending(seed, "Costly", [120, 320 + seed]) for seed in (0, 1, 2)],
    }
    result = result_of(experiment, runs, {"scale": 1.0, "seeds": 3})
    base, costly = result["entries"]
    assert (base["ours"]["mean"], base["ours"]["std"]) == (1, 0)
    assert costly["ours"]["mean"] == pytest.approx(441 / 400)
    assert result["curves"]["one"]["Costly"][0] == [[1, 0.6], [2, 1.1]]
    words = [claim["verdict"] for claim in result["claims"]]
    assert words == ["not reproduced", "reproduced", "reproduced"]
    assert result["claims"][0]["margins"]["one"] == pytest.approx(1 - 441 / 400)
    with pytest.raises(UsageError, match="mentions 'FedAvgg'"):
        parse_experiment("bytes", BYTES.replace("base: FedAvg", "base: FedAvgg"))


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
    less = Trend("falls more than B", "A", (("large", "middle", "small"), ("one", "two")), against="B")
    assert margins(less, scores) == {"large to middle": 6, "middle to small": -2}
    assert margins(falls, {k: v for k, v in scores.items() if k != "middle"})["large to small"] == 9
    assert margins(falls, {}) == {}
    with pytest.raises(UsageError, match="no row 'small'"):
        parse_experiment(
            "small",
            SMALL.replace("open:", '  - {text: "falls", falls: FedAvg, along: [[even, small]]}\nopen:'),
        )
