"""Every experiment's file holds together, a user's own is read as ours are, others are refused."""

from __future__ import annotations

import pytest

from tests.experiments.tables import SMALL, written
from unskew.errors import UnskewError, UsageError
from unskew.experiments.files import check_experiment, experiment_names, parse_experiment, read_experiment
from unskew.methods import registry


@pytest.mark.parametrize("name", experiment_names())
def test_every_file_holds_together(name):
    experiment = read_experiment(name)
    check_experiment(experiment, name)
    assert experiment.rows
    assert experiment.paper or "Our own" in experiment.open[0]
    for method in experiment.methods:
        settings = experiment.settings_of(experiment.rows[-1], method)
        assert str(registry.parse(settings.method)) == settings.method
    for row in experiment.rows:
        for value in row.published.values():
            assert (1 < value <= 100) if experiment.unit == "percent" else value > 0  # percent, not shares


def test_the_papers_own_numbers_bear_out_the_claims_they_make():
    """A slip in copying a table would show: the published margins of its main claim are positive."""
    for name, text in (
        ("flea-table1", "FLea exceeds FedMix"),
        ("rebafl-table1", "ReBaFL is best"),
        ("rebafl-table3", "ReBaFL is best at every size"),
        ("rebafl-table3", "ReBaFL exceeds BSM-FedAvg"),
        ("rebafl-table3", "BSM-FedAvg exceeds FedAvg"),
    ):
        experiment = read_experiment(name)
        claim = next(c for c in experiment.claims if c.text == text)
        rows = [r for r in experiment.rows if r.published]
        margins = [r.published[claim.better] - max(r.published[m] for m in claim.than) for r in rows]
        assert min(margins) > 0, (name, margins)


OWN = """
methods: {FedAvg: fedavg, Mine: fedprox}
rows: {a: {settings: {lr: 0.1}}, b:}
"""


def test_an_own_file_needs_methods_and_rows_only(tmp_path):
    experiment = read_experiment(written(tmp_path, "own", OWN))
    told = (experiment.name, experiment.title, experiment.paper, experiment.measure)
    assert told == ("own", "own", "", "mean10")
    assert [r.name for r in experiment.rows] == ["a", "b"]
    assert all(r.has_data for r in experiment.rows)  # the data that runs have unless told
    assert experiment.settings_of(experiment.rows[0], "Mine").lr == 0.1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMALL + "\nmeassure: best", "small.yaml: unknown entry 'meassure'. Did you mean 'measure'"),
        (SMALL.replace("published: {FedAvg: 50.0}", "published: {FedAvgg: 50.0}"), "mentions 'FedAvgg'"),
        (SMALL.replace("published: {FedAvg: 50.0}", "published: {FedAvg: high}"), "published.FedAvg should"),
        (SMALL.replace("than: all", "then: all"), "claim 1: unknown entry 'then'. Did you mean 'than'"),
        (SMALL.replace(", than: all", ""), "claim 1: than is needed"),
        (SMALL.replace("rows:", "rows: 3\nrest:"), "needs `rows:`"),
        (SMALL.replace("lost: {settings: {data: cifar10}}", "lost: cifar10"), "row lost should hold keys"),
        (SMALL.replace("than: all", "than: all but Stil"), "claim 1: than should be a list"),
        (SMALL.replace("overrides: {Still:", "overrides: {Stil:"), "mentions 'Stil'.*Did you mean 'Still'"),
        (SMALL.replace("skew: iid", "method: flea"), "leave 'method' out of settings; `methods:` names them"),
        (SMALL.replace("clients: 4", "seed: 4"), "leave 'seed' out of settings"),
        (SMALL + "settings: {data: digits}", "'settings' stands at line 5 and at line 16"),
        ("methods: {A: fedavg}\nrows: {a:}\nsettings: digits", "settings should hold keys and values, "),
        ("methods: {A: fedavg}\nrows: {a:}\nclaims: none", "claims should be a list, got 'none'"),
        (
            "methods: {A: fedavg, B: fedprox}\nrows: {a:}\nclaims: [{text: t, falls: A, along: [[a]], by: -1}]",
            "claim 1: by should be greater than or equal to 0, got -1",
        ),
        ("methods: {3: fedavg}\nrows: {a:}", "put the method's name 3 in quotes"),
        ("", "needs `methods:`"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused(text, says):
    with pytest.raises(UsageError, match=f"E126.*{says}"):
        parse_experiment("small", text)


def test_a_cell_that_could_not_run_is_refused_with_its_place(tmp_path):
    for text, says in (
        (OWN.replace("lr: 0.1", "learning_rate: 0.1"), "E109 .*own.yaml, row a, FedAvg: unknown key.*'lr'"),
        (OWN.replace("Mine: fedprox", "Mine: fedprx"), "E102 .*row a, Mine: unknown method 'fedprx'"),
        (OWN.replace("lr: 0.1", "skew: clases:2"), "E103 .*row a, FedAvg: unknown skew.*'classes'"),
        (OWN.replace("lr: 0.1", "data: mine.npz"), "E402 .*row a, FedAvg: there is no mine.npz"),
        (OWN.replace("lr: 0.1", "set: {fedprx: {mu: 1}}"), "E126 .*row a: set names 'fedprx'.*'fedprox'"),
        (OWN + "overrides: {FedAvg: {set: {fedprox: {mu: 1}}}}", "E126 .*row a, FedAvg: set names 'fedprox'"),
    ):
        with pytest.raises(UnskewError, match=says):
            read_experiment(written(tmp_path, "own", text))
    with pytest.raises(UsageError, match="E111 there is no file"):
        read_experiment(str(tmp_path / "nowhere.yaml"))
