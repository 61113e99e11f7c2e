"""Every experiment's file holds together, a user's own is read as ours are, and what does not hold together is refused."""

from __future__ import annotations

import pytest

from tests.experiments.tables import SMALL, written
from unskew.core.method import Method
from unskew.errors import UsageError
from unskew.experiments import files


@pytest.mark.parametrize("name", files.names())
def test_every_file_holds_together(name):
    made = files.load(name)
    assert made.rows
    assert made.paper
    for row in made.rows:
        for method in made.methods:
            settings = made.settings_of(row, method)
            assert str(Method.parse(settings.method)) == settings.method
        for value in row.published.values():
            assert (1 < value <= 100) if made.unit == "percent" else value > 0  # percent, not shares
    if any(r.published for r in made.rows):
        assert made.claims or made.axis


def test_the_papers_own_numbers_bear_out_the_claims_they_make():
    """A slip in copying a table would show: the published margins of its main claim are positive, as the paper says."""
    for name, text in (
        ("flea-table1", "FLea exceeds FedMix"),
        ("rebafl-table1", "ReBaFL is best"),
        ("rebafl-table3", "ReBaFL is best at every size"),
        ("rebafl-table3", "ReBaFL exceeds BSM-FedAvg"),
        ("rebafl-table3", "BSM-FedAvg exceeds FedAvg"),
    ):
        made = files.load(name)
        claim = next(c for c in made.claims if c.text == text)
        rows = [r for r in made.rows if r.published]
        margins = [r.published[claim.better] - max(r.published[m] for m in claim.than) for r in rows]
        assert min(margins) > 0, (name, margins)


OWN = """
methods: {FedAvg: fedavg, Mine: fedprox}
rows: {a: {settings: {lr: 0.1}}, b:}
"""


def test_an_own_file_needs_methods_and_rows_only(tmp_path):
    made = files.load(written(tmp_path, "own", OWN))
    assert (made.name, made.title, made.paper, made.measure) == ("own", "own", "", "mean10")
    assert [r.name for r in made.rows] == ["a", "b"]
    assert all(r.at_hand for r in made.rows)  # the data that runs have unless told
    assert made.settings_of(made.rows[0], "Mine").lr == 0.1


def test_a_row_comes_on_top_of_what_all_rows_share(tmp_path):
    made = files.load(written(tmp_path, "own", OWN + "settings: {lr: 0.3, epochs: 2}"))
    assert [(s.lr, s.epochs) for r in made.rows for s in [made.settings_of(r, "Mine")]] == [(0.1, 2), (0.3, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMALL + "\nmeassure: best", "small.yaml: unknown entry 'meassure'. Did you mean 'measure'"),
        (SMALL.replace("published: {FedAvg: 50.0}", "published: {FedAvgg: 50.0}"), "speaks of 'FedAvgg'"),
        (
            SMALL.replace("published: {FedAvg: 50.0}", "published: {FedAvg: high}"),
            "row even: published.FedAvg should be",
        ),
        (
            SMALL.replace("measure: best", "measure: middle"),
            "measure should be 'best', 'last' or 'mean10', got 'middle'",
        ),
        (SMALL + "\nunit: points", "unit should be 'percent' or 'number'"),
        (SMALL.replace("note: ", "nte: "), "row even: unknown entry 'nte'. Did you mean 'note'"),
        (SMALL.replace("than: all", "then: all"), "claim 1: unknown entry 'then'. Did you mean 'than'"),
        (SMALL.replace(", than: all", ""), "claim 1: than is needed"),
        (SMALL.replace("rows:", "rows: 3\nrest:"), "needs `rows:`"),
        (SMALL.replace("lost: {settings: {data: cifar10}}", "lost: cifar10"), "row lost should hold keys and values"),
        ("", "needs `methods:`"),
        ("- a\n- b", "needs `methods:`"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused(text, says):
    with pytest.raises(UsageError, match=f"E126.*{says}"):
        files.read("small", text)


def test_a_cell_that_could_not_run_is_refused_with_its_place(tmp_path):
    for text, says in (
        (OWN.replace("lr: 0.1", "learning_rate: 0.1"), "E101 .*own.yaml, row a, FedAvg: unknown key.*'lr'"),
        (OWN.replace("Mine: fedprox", "Mine: fedprx"), "E102 .*row a, Mine: unknown method 'fedprx'.*'fedprox'"),
        (OWN.replace("lr: 0.1", "lr: fast"), "E109 .*row a, FedAvg: lr should be"),
    ):
        with pytest.raises(UsageError, match=says):
            files.load(written(tmp_path, "own", text))
    with pytest.raises(UsageError, match="E111 there is no file"):
        files.load(str(tmp_path / "nowhere.yaml"))
