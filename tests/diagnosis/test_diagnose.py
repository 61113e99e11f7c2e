"""`unskew diagnose` and `unskew.diagnose`: what they print and return, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from unskew import config
from unskew.diagnosis.advice import Expectation, Gain
from unskew.errors import DataError, UsageError
from unskew.runs.resolve import resolve

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 4))
Y = np.arange(60) % 3
SITE = np.arange(60) // 20


def csv(path: Path, header: str, rows: list[str]) -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def rows() -> list[str]:
    return [f"{x[0]:.3f},{x[1]:.3f},{s},{y}" for x, s, y in zip(X, SITE, Y)]


def test_the_command_prints_measures_meaning_advice_and_evidence():
    shown = call("diagnose", "digits", "--skew", "classes:2", "--clients", "10")
    assert (shown.code, shown.err) == (0, "")
    for part in (
        "label skew",
        "missing classes",
        "80%",
        "From each site",
        "over fedavg",
        "over local",
        "Evidence:",
    ):
        assert part in shown.out
    assert "not here  fedbn: " in shown.out


def test_a_table_is_divided_by_its_column_of_sites(tmp_path: Path):
    """Not by a skew of ours, which would be diagnosed in place of theirs."""
    path = csv(tmp_path / "t.csv", "a,b,bank,label", rows())
    told = json.loads(call("diagnose", path, "--site", "bank", "--json").out)
    assert told["split"] == "column:bank"
    assert told["measures"]["sites"]["value"] == 3
    usual = csv(tmp_path / "u.csv", "a,b,site,label", rows())
    assert json.loads(call("diagnose", usual, "--json").out)["split"] == "column:site"


def test_own_data_that_nothing_divides_are_refused():
    with pytest.raises(DataError, match=r"E403 arrays: nothing says which sample is from which site"):
        unskew.diagnose((X, Y))
    assert unskew.diagnose((X, Y), skew="iid", clients=3).skews.sites == 3


def test_one_site_is_refused(tmp_path: Path):
    path = csv(
        tmp_path / "t.csv", "a,b,site,label", [row.replace(f",{s},", ",7,") for row, s in zip(rows(), SITE)]
    )
    refused = call("diagnose", path)
    assert refused.code == 2
    assert refused.err.startswith("E403 t: one site holds all samples, so there is nothing to federate")
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("mean", "pays", "method"), [(0.2, "yes", "unskew"), (-0.2, "no", "local"), (0.02, "open", "unskew")]
)
def test_whether_federating_pays_is_said(mean: float, pays: str, method: str):
    """A gain beyond its spread of 5 points either way, and one within it."""
    over = Gain(mean, 0.05, 6)
    ranking = (Expectation("unskew", Gain(0.1, 0.02, 6), over), Expectation("fedavg", Gain(0, 0, 6), None))
    diagnosis = replace(
        unskew.diagnose("digits", clients=8), rankings={"sites": ranking, "one": ranking}, cautions=()
    )
    assert (diagnosis.pays, diagnosis.method) == (pays, method)
    words = {"yes": "Federating pays: ", "no": "Federating does not pay: ", "open": "cannot be told: "}
    expected = f"unskew is expected {100 * mean:+.1f} ± 5.0 points"
    assert f"{words[pays]}{expected}" in diagnosis.table()
    doubted = replace(diagnosis, cautions=("no setting is like this one.",))
    because = (
        ""
        if pays == "open"
        else "the evidence may not carry over to these data, as the cautions say, though "
    )
    assert f"Whether federating pays cannot be told: {because}{expected}" in doubted.table()


def test_methods_that_share_activations_are_advised_only_where_they_may():
    def methods(**options: bool) -> set[str]:
        return {e.method for e in unskew.diagnose("digits", clients=8, **options).rankings["one"]}

    assert not any("flea" in method for method in methods())
    assert methods(features=True) - methods() == {"flea(lambda2=0)"}


def test_where_sites_demand_sums_only_what_can_be_summed_is_advised():
    """The default collects every site's statistics by itself, so a run of it would be refused."""
    open_, summed = (
        unskew.diagnose("digits", clients=8, secure_aggregation=s) for s in ("off", "on,clip=8,bits=32")
    )
    assert open_.method == "unskew"
    for ranking in summed.rankings.values():
        for expected in ranking:
            resolve(config.build({"method": expected.method, "clients": 8, "secure_aggregation": "on"}))
    assert summed.method == "unskew(statistics=False)"
    assert {"unskew", "fedrdn"} <= {*summed.refused} - {*open_.refused}
    assert "secure aggregation is not possible with 'unskew'" in summed.table()
    both = unskew.diagnose("digits", clients=8, secure_aggregation="on", features=True)
    assert "flea(lambda2=0)" in both.refused
    assert (
        call("diagnose", "digits", "--clients", "8", "--secure-aggregation", "on").out.count(
            "statistics=False"
        )
        >= 2
    )


@pytest.mark.parametrize(
    ("option", "code"), [({"clients": 2}, "E108"), ({"secure_aggregation": "yes"}, "E1")]
)
def test_sums_that_cannot_be_had_are_refused(option: dict[str, Any], code: str):
    with pytest.raises(UsageError, match=code):
        unskew.diagnose("digits", **({"clients": 8, "secure_aggregation": "on", "skew": "iid"} | option))


def test_masks_leave_out_what_needs_one_label_a_sample():
    x = rng.standard_normal((12, 1, 16, 16)).astype(np.float32)
    masks = np.zeros((12, 16, 16), np.int64)
    masks[:, :4] = 1
    diagnosis = unskew.diagnose([(x[:6], masks[:6]), (x[6:], masks[6:])])
    assert "rebafl" in diagnosis.refused
    assert "fedavg" in {e.method for e in diagnosis.rankings["sites"]}
    assert "caution   every setting of the evidence has one input and one label a sample" in diagnosis.table()


def test_a_federation_unlike_all_evidence_is_told():
    """3,000 samples of each class at each of two sites, where settings have a few."""
    y = np.arange(6000) % 2
    far = unskew.diagnose([(np.zeros((6000, 2)) + y[:, None], y)] * 2)
    assert far.nearest[0].distance > 3
    assert "no setting of the evidence is like this one" in far.table()
    assert far.pays == "open"
    assert "Whether federating pays cannot be told" in far.table()


def test_labels_of_one_class_are_told_and_a_method_is_refused():
    one = unskew.diagnose([(X[:30], np.zeros(30, np.int64)), (X[30:], np.zeros(30, np.int64))])
    assert "caution   all labels are of one class" in one.table()
    with pytest.raises(UsageError, match="E109 lr, rounds would change nothing in a diagnosis"):
        unskew.diagnose("digits", rounds=3, lr=0.1)
    with pytest.raises(UsageError, match=r"E109 .*Did you mean 'skew'"):
        unskew.diagnose("digits", skw="iid")
    with pytest.raises(UsageError, match="E109 a diagnosis takes no method"):
        unskew.diagnose("digits", method="flea")
