"""In which words a table is told: what its numbers are and how they came about, from the kept result."""

from __future__ import annotations

from typing import Any

from unskew.experiments import wording


def score(mean=0.5, std=0.1, n=3):
    return {"mean": mean, "std": std, "n": n}


def entry(row="p0.1", n=3, **more):
    return {"row": row, "method": "FLea", "paper": None, "ours": score(n=n), "ahead": None, "p": None, **more}


def result(*entries, **more) -> Any:
    """What `result.json` holds of a table, as far as words need it."""
    given = list(entries) or [entry()]
    rows = {e["row"]: {"note": ""} for e in given}
    return {
        "title": "A table",
        "page": "t",
        "paper": "FLea",
        "unskew": "2",
        "made_by": {"2": 3},
        "unit": "percent",
        "metric": "global",
        "scope": "global",
        "measure": "last",
        "scale": 1,
        "entries": given,
        "rows": rows,
        "claims": [],
        "curves": {},
        **more,
    }


def test_claims_that_nothing_tested_do_not_count():
    def claim(verdict, **margins):
        return {"verdict": verdict, "margins": margins, "paper": {}}

    both = [
        claim("reproduced", a=1.0),
        claim("not reproduced", a=-1.0),
        claim("not run"),
        claim("reproduced in 1 of 2", a=1),
    ]
    assert wording.summary(result(claims=both)) == "reproduced: 1; in part: 1; not reproduced: 1"
    assert wording.summary(result(claims=[claim("not run")])) == "no claim tested"
    unclear = [
        claim("reproduced", a=1),
        claim("unclear", a=1),
        claim("reproduced in 1 of 2 rows, unclear in 1", a=1),
    ]
    assert wording.summary(result(claims=unclear)) == "reproduced: 1; in part: 1; unclear: 1"
    assert wording.rules(result(claims=unclear[2:])).startswith("Unclear: ")
    assert wording.rules(result(claims=both)) == ""
    assert wording.verdict({**claim("agrees so far"), "seeds": 1, "rounds": 0.25}) == (
        "agrees so far: 1 seed, 0.25 of the rounds"
    )
    interval = {**claim("reproduced", a=1.0), "intervals": {"a": [0.5, 1.5]}}
    assert wording.margins(interval, "percent") == "a +1.0 (+0.5 to +1.5)"


def test_an_attacks_score_stands_between_what_it_knows_without_and_with_the_samples():
    found = entry(bounds={"low": 55.5, "high": 60.25, "floor": 50.0, "ceiling": 99.0})
    assert wording.bounds(found, "percent") == ("55.5 to 60.2", "50.0", "99.0")
    rows = {"p0.1": {"quantity": "top-1 match"}, "p0.2": {}}
    told = wording.note(result(found, entry("p0.2"), metric="accuracy", rows=rows, paper=""))
    assert told.startswith(
        "ours: top-1 match in % that the attack found after the last round (in `p0.1`); accuracy in"
    )
    assert wording.ATTACKS in told
