"""In which words a table is told: what its numbers are, and how they came about, from the kept result
alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unskew.experiments import result as kept_result
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
    assert wording.claim_counts(result(claims=both)) == (1, 3)
    assert wording.summary(result(claims=both)) == "1 of 3 claims reproduced"
    assert wording.summary(result(claims=[claim("not run")])) == "no claim tested"
    unclear = [
        claim("reproduced", a=1),
        claim("unclear", a=1),
        claim("reproduced in 1 of 2 rows, unclear in 1", a=1),
    ]
    assert wording.summary(result(claims=unclear)) == "1 of 3 claims reproduced, 1 unclear"
    assert wording.unclear_note(result(claims=unclear[2:])).startswith("Unclear: ")
    assert wording.unclear_note(result(claims=both)) == ""


def test_versions_are_named_where_another_one_made_runs():
    assert wording.makers(result()) == ""
    assert wording.makers(result(made_by={"1": 2, "2": 1})) == " Runs by version: 2 by 1, 1 by 2."
    assert wording.makers(result(made_by={"1": 3})) == " Runs by version: 3 by 1."
    assert "was not recorded" in wording.makers(result(made_by={}))


def test_notes_are_of_rows_that_were_run():
    rows = {"p0.1": {"note": "with 20 clients"}, "p0.2": {"note": "not run"}, "p0.3": {"note": ""}}
    assert wording.notes(result(entry("p0.1"), entry("p0.3"), rows=rows)) == ["`p0.1`: with 20 clients."]


def test_a_gap_is_that_of_whole_runs_to_the_papers_numbers():
    with_numbers = [entry(paper=61.0)]
    assert "gap: ours minus the paper's." in wording.note(result(*with_numbers))
    assert "gap:" not in wording.note(result())
    shortened = wording.note(result(*with_numbers, scale=0.25, schedules=["lr_rounds"]))
    assert "gap:" not in shortened
    assert (
        "SCALED: 0.25 of the paper's rounds; the paper's numbers, in brackets, are of whole runs and no"
        " target." in shortened
    )
    assert "Schedules end where the whole run's end: lr_rounds." in shortened
    own = wording.note(result(scale=0.5, paper="", schedules=[]))
    assert "SCALED: 0.5 of the table's rounds." in own
    assert "chedules" not in own


def test_one_seed_has_no_spread_and_fewer_than_five_no_test():
    one, three, five = (wording.note(result(entry(n=n))) for n in (1, 3, 5))
    assert "in the last round, as the paper reports; one seed." in one
    assert "mean ± sample standard deviation over 3 seeds." in three
    assert "other method of the row; 3 seeds are too few for a test, which needs 5." in three
    assert "with a paired t-test over seeds, Holm-corrected" in five
    assert wording.points(score(61.44, 0.84, 1), "percent") == "61.4"
    assert wording.points(score(61.44, 0.84, 2), "percent") == "61.4 ± 0.8"
    assert wording.points(score(0.01234, 0.00456, 2), "number") == "0.0123 ± 0.0046"
    assert wording.points(score(None, None, 0), "percent") == wording.points(score(1.0, None, 2), "percent")


def test_ours_says_which_score_it_is_of_whose_model_and_on_what():
    """Pages said which round, and neither the score nor whether it is the global model's or each client's
    own."""

    def told(*entries, **more):
        return wording.note(result(*entries, **more)).splitlines()[0]

    assert told(metric="accuracy", measure="best").startswith(
        "ours: accuracy, in %, of the global model on all test samples, in the best round, as the paper"
        " reports; mean ±"
    )
    assert told(metric="rmse", unit="number", measure="mean10", paper="").startswith(
        "ours: RMSE of the global model on all test samples, averaged over those of the last ten rounds that"
        " were evaluated; "
    )
    rows = {"a": {"main": "dice"}, "b": {"main": "dice", "quantity": "worst", "scope": "personal@client"}}
    one, both = ([entry(name) for name in names] for names in ("a", "ab"))
    mean = "Dice, in %, of the global model on each client's own test samples, mean over clients"
    assert told(*one, rows=rows, metric="mean", scope="global@client").startswith(
        f"ours: {mean}, in the last round"
    )
    assert told(*both, rows=rows, metric="mean", scope="global@client").startswith(
        f"ours: {mean} (in `a`); Dice, in %, of each client's own model on its own test samples, worst client"
        " (in `b`), in"
    )
    assert told(scope="measure", unit="number").startswith(
        "ours: the measure named below, in the last round, as"
    )
    curves = {"b": {"FLea": [[[10, 0.1], [20, 0.2]]]}}
    early = told(
        *both, rows={"a": {"at": 10}, "b": {"at": 20}}, scope="measure", unit="number", curves=curves
    )
    assert early.startswith(
        "ours: the measure named below, in the last round (of `a` up to round 10), as the paper"
    )
    bounded = entry(bounds={"low": 0.1, "high": 0.2, "floor": 0.0, "ceiling": 1.0})
    found = told(bounded, scope="attack", metric="MSE", unit="number", rows={"p0.1": {"quantity": "MSE"}})
    assert found.startswith("ours: what the attack found after the last round: MSE; ")


def test_a_lead_has_its_sign_and_a_p_of_five_seeds():
    assert wording.lead(entry(ahead=2.31, p=0.0123), "percent") == "+2.3"
    assert wording.lead(entry(n=5, ahead=2.31, p=0.0123), "percent").startswith("+2.3, p = ")
    assert wording.lead(entry(n=5, ahead=-0.46), "percent") == "-0.5"
    assert wording.lead(entry(), "percent") == ""
    assert (wording.with_sign(0.01234, "number"), wording.with_sign(None, "percent")) == ("+0.012", "")
    claim: Any = {"margins": {"p0.1": 2.31, "p0.2": -0.44}, "paper": {"p0.1": 1.2}}
    assert wording.margins(claim, "percent") == "p0.1 +2.3 [+1.2], p0.2 -0.4"


def test_what_an_attack_found_stands_between_what_it_knows_without_and_with_the_samples():
    found = entry(bounds={"low": 55.5, "high": 60.25, "floor": 50.0, "ceiling": 99.0})
    assert wording.bounds(found, "percent") == ("55.5 to 60.2", "50.0", "99.0")
    assert wording.bounds(entry(), "percent") == ("", "", "")
    assert wording.score_origins(result(found)) == (True, False)
    assert wording.score_origins(result(found, entry())) == (True, True)
    assert wording.score_origins(result(entry())) == (False, True)
    told = wording.note(result(found, entry("p0.2"), scope="attack"))
    assert wording.ATTACKS in told
    assert "or what the attack of the row found after the last round" in told
    rows = {"p0.1": {"quantity": "top-1 match"}, "p0.2": {}}
    told = wording.note(result(found, entry("p0.2"), metric="accuracy", rows=rows, paper=""))
    assert told.startswith(
        "ours: accuracy, in %, of the global model on all test samples, in the last round, or what the"
    )
    assert "of the row found after the last round: top-1 match, in %; mean" in told


def test_every_row_names_its_own_measure():
    rows = {"a": {"note": "", "quantity": "exposure/12"}, "b": {"note": ""}}
    told = wording.note(
        result(entry("a"), entry("b"), rows=rows, scope="measure", metric="diversity", unit="number")
    )
    assert (
        "The number is the measure `exposure` (a), `diversity` (b), which docs/measures.md explains" in told
    )


def test_a_score_over_clients_says_whose_it_is_and_of_which_score():
    """`mean` was called accuracy, of regressions and masks, too."""
    rows = {
        "a": {"note": "", "main": "rmse"},
        "b": {"note": "", "main": "dice", "quantity": "worst"},
        "c": {"note": ""},
    }
    told = result(entry("a"), rows=rows, metric="mean")
    assert wording.quantity(told, "a") == "RMSE, mean over clients"
    assert wording.quantity(told, "b") == "Dice, worst client"
    assert wording.quantity(told, "c") == "score, mean over clients"
    assert wording.quantity(told) == "score, mean over clients"  # rows of two tasks
    del rows["b"]
    assert wording.quantity(told) == "RMSE, mean over clients"
    assert wording.quantity(result(entry("a"), rows=rows, metric="macro_f1"), "a") == "macro-F1"


@pytest.mark.parametrize(("scale", "shown"), [(1, "100"), (0.25, "100 (0.25 of the paper's)")])
def test_rounds_are_those_of_the_longest_run(scale, shown):
    curves = {"p0.1": {"FLea": [[[1, 0.1], [40, 0.2]], []], "FedAvg": [[[1, 0.1], [100, 0.3]]]}}
    assert wording.rounds(result(curves=curves, scale=scale)) == shown
    assert wording.rounds(result(scale=1)) == "0"


def test_equal_titles_are_told_apart_by_their_pages():
    one, other, third = result(), result(page="u"), result(title="Another", page="v")
    assert wording.titles([one, other, third]) == ["A table (t)", "A table (u)", "Another"]
    assert wording.index_title([result(paper="")])[0] == "Tables, run here"
    assert wording.index_title([result(paper=""), one])[0] == "Published tables, run here"


def test_what_protects_least_is_what_guarantees_nothing():
    """A seed without any guarantee counted as one with epsilon 0."""

    def account(*epsilons):
        return {"epsilons": [{"epsilon": e, "reading": ""} for e in epsilons]}

    rising = [
        account(1.0, 2.0),
        account(3.0, 0.5),
        account(2.0, None),
        account(9.0, None),
        account(None, None),
    ]
    falling = rising[::-1]
    assert sorted(falling, key=kept_result._largest_epsilon) == rising


def test_what_is_kept_is_json_that_every_program_reads():
    held = kept_result._plain(
        {"a": [float("inf"), float("nan"), -float("inf"), 0.12345678], "b": "x", "c": 3}
    )
    assert held == {"a": [None, None, None, 0.123457], "b": "x", "c": 3}


def test_a_row_is_kept_with_the_main_score_of_its_runs():
    row = SimpleNamespace(name="r", note="n", x=None, panel="", attack=None, metric="worst", scope="", at=0)
    runs = {
        ("s", "FedAvg"): [SimpleNamespace(metric="dice")],
        ("r", "FedAvg"): [SimpleNamespace(metric="rmse")],
    }
    assert kept_result._row(row, runs) == {
        "note": "n",
        "x": None,
        "panel": "",
        "quantity": "worst",
        "main": "rmse",
    }
    assert "main" not in kept_result._row(row, {})
    row.scope, row.at = "personal@client", 10
    assert kept_result._row(row, {}).items() >= {"scope": "personal@client", "at": 10}.items()
