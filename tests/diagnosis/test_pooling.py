"""Whether rows of other sites help at a site, where that is known, and what follows for a table."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import unskew
from tools.evidence_page import after_rule, verdict_trials
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.diagnosis import advice, pooling
from unskew.diagnosis.advice import Expectation, Gain, over_local, pays
from unskew.diagnosis.pooling import Pooling, pooling_of


def federation(rows: int, sites: int, turned: bool = False, **more) -> Federation:
    """Rows of eight normal numbers; the class is the sign of the first, `turned` at every second site."""
    r = np.random.default_rng(0)
    x = r.normal(size=(rows * sites, 8)).astype(np.float32)
    owner = np.arange(rows * sites) // rows
    y = ((x[:, 0] > 0) ^ (turned & (owner % 2 == 1))).astype(np.int64)
    index = Index.by_owner(owner, sites)
    return Federation("f", x, y, x[:0], y[:0], ("a", "b"), index, Index.empty(sites), "by hand", **more)


def test_rows_of_others_help_small_sites_with_one_rule_and_harm_large_ones_with_another():
    few, apart = pooling_of(federation(12, 8)), pooling_of(federation(150, 4, turned=True))
    assert few.gain > 2 * few.error > 0
    assert apart.gain < -0.3
    assert apart.gain < -2 * apart.error


def test_one_rule_and_many_rows_leave_nothing_to_gain():
    enough = pooling_of(federation(600, 2))
    assert abs(enough.gain) < 0.03
    assert enough.error > 0


def test_the_classifier_is_that_of_normal_densities_of_one_covariance():
    r = np.random.default_rng(1)
    z, y = r.normal(size=(60, 5)), r.integers(0, 3, 60)
    z += y[:, None]
    a_FC, b_C = pooling._classifier(z, y, 4)
    means = [z[y == c].mean(0) for c in range(3)]
    spread = sum((row - means[c])[:, None] * (row - means[c]) for row, c in zip(z, y)) / 60
    spread = spread + pooling.RIDGE * np.eye(5)
    new = r.normal(size=(20, 5)) * 2
    densities = np.stack([multivariate_normal(m, spread).logpdf(new) for m in means], 1)
    scores = new @ a_FC + b_C
    assert np.allclose(np.diff(scores[:, :3]), np.diff(densities))
    assert (scores[:, 3] == -np.inf).all()


def test_rows_of_a_patient_are_in_one_fold():
    """Four identical rows each, labels at random: split apart, every site would know its own patients."""
    r = np.random.default_rng(2)
    patient = np.arange(200) // 4
    x, y = r.normal(size=(50, 8)).astype(np.float32)[patient], r.integers(0, 2, 50)[patient]
    both = {"y_test": y[:0], "x_test": x[:0], "classes": ("a", "b"), "train": Index.by_owner(patient % 2, 2)}
    plain = Federation("f", x, y, test=Index.empty(2), skew="by hand", **both)
    grouped = Federation(
        "f", x, y, test=Index.empty(2), skew="by hand", columns={"p": patient}, group_column="p", **both
    )
    for k, folds in enumerate(pooling._folds(grouped, list(grouped.train))):
        own = patient[grouped.train[k]]
        assert all(len(set(folds[own == p])) == 1 for p in set(own))
        assert len(set(folds)) == pooling.FOLDS
    folds = pooling._folds(plain, list(plain.train))[0]
    assert any(len(set(folds[patient[plain.train[0]] == p])) > 1 for p in patient)


def test_visits_of_a_patient_at_several_sites_are_no_gain():
    """Each patient was once at each of four sites, and has a label at random: only memory would gain."""
    r = np.random.default_rng(0)
    patient, site = np.repeat(np.arange(60), 4), np.tile(np.arange(4), 60)
    x = (r.normal(size=(60, 6))[patient] + 0.05 * r.normal(size=(240, 6))).astype(np.float32)
    y = r.integers(0, 2, 60)[patient]
    f = Federation(
        "f", x, y, x[:0], y[:0], ("a", "b"), Index.by_owner(site, 4), Index.empty(4), "by hand",
        columns={"p": patient}, group_column="p",
    )  # fmt: skip
    folds = np.concatenate(pooling._folds(f, list(f.train)))
    pairs = set(zip(patient[f.train.rows].tolist(), folds.tolist()))
    assert len(pairs) == 60
    assert abs(pooling_of(f).gain) < 0.1


def test_rows_of_a_patient_count_as_one():
    """Ten equal rows of each patient say as much as one; the error is that of the patients, by hand."""
    one = federation(12, 8)
    rows = np.repeat(np.arange(96), 10)
    of_ten = {"y_test": one.y[:0], "x_test": one.x[:0], "classes": ("a", "b"), "skew": "by hand"}
    of_ten |= {"train": Index.by_owner(rows // 12, 8), "test": Index.empty(8), "columns": {"p": rows}}
    ten = [Federation("f", one.x[rows], one.y[rows], **of_ten, group_column=group) for group in ("p", "")]
    as_groups, as_rows = map(pooling_of, ten)
    assert as_groups.error > 2 * as_rows.error
    right = np.array([[1, 0], [1, 0], [0, 1], [1, 1], [1, 0], [0, 0]], bool)
    f = Federation(
        "f", one.x[:6], one.y[:6], one.x[:0], one.y[:0], ("a", "b"), Index.of([np.arange(6)]), Index.empty(1),
        "by hand", columns={"p": np.array([0, 0, 1, 1, 2, 2])}, group_column="p",
    )  # fmt: skip
    assert pooling._variance(f, [np.arange(6)], [right]) == pytest.approx((2**2 + 1 + 1 + 2**2) / 36)
    both = [np.array([0, 2, 4]), np.array([1, 3, 5])]  # every patient at two sites
    assert pooling._variance(f, both, [right[own] for own in both]) == pytest.approx((6 + 2) / 9 / 4)


def test_images_numbers_and_one_site_have_none():
    images = federation(20, 3)
    x = images.x.reshape(-1, 1, 2, 4)
    shaped = Federation(
        "f", x, images.y, x[:0], images.y[:0], ("a", "b"), images.train, Index.empty(3), "by hand"
    )
    assert pooling_of(shaped) is None
    assert pooling_of(federation(20, 1)) is None
    assert unskew.diagnose("digits", clients=8).pooling is None


@pytest.mark.parametrize(("gain", "verdict"), [(0.10, "yes"), (-0.10, "open"), (-0.30, "no")])
def test_evidence_and_own_rows_are_weighed_by_hand(gain, verdict):
    """Precisions 1 / (0.04^2 + 0.03^2) = 400, 1 / 0.03^2 = 1111: 0.0559, 0.0029, -0.0500, each ± 0.0257."""
    best = Expectation("unskew", Gain(0.1, 0.02, 6), Gain(0.04, 0.03, 6))
    lead = over_local(best, Pooling(gain, 0.04))
    assert lead.mean == pytest.approx((gain * 400 + 0.04 / 0.0009) / (400 + 1 / 0.0009))
    assert lead.spread == pytest.approx(0.0257, abs=1e-4)
    assert pays(best, Pooling(gain, 0.04)) == verdict
    assert pays(best) == "yes"


def test_a_diagnosis_of_a_table_rests_on_tables_and_decides():
    few = federation(12, 8)
    diagnosis = unskew.diagnose(few)
    tables = advice.plans("tables.yaml")
    assert all(near.setting.name in tables for near in diagnosis.nearest)
    assert diagnosis.pooling == pooling_of(few)
    assert diagnosis.pays == "yes"
    assert "pooled rows" in diagnosis.table()
    assert "how many of its rows" in diagnosis.leaves
    assert unskew.diagnose(federation(150, 4, turned=True)).pays == "no"
    assert diagnosis.as_dict()["pooling"]["gain"] == diagnosis.pooling.gain


def test_whether_federating_pays_is_told_of_tables_that_are_left_out():
    """The figures of docs/evidence.md: more than half of the answers decide; of these, four fifths or more are
    the measured one, and none the opposite of it."""
    every = verdict_trials()
    assert len(every) >= 20
    assert {t.measured for t in every} == {"yes", "no", "open"}
    pairs = Counter((answer, t.measured) for t in every for answer in t.advised)
    assert {answer for answer, _ in pairs} == {"yes", "no", "open"}
    decided = {pair: n for pair, n in pairs.items() if pair[0] != "open"}
    assert sum(n for (a, m), n in decided.items() if a == m) >= 0.8 * sum(decided.values())
    assert sum(decided.values()) > 0.5 * sum(pairs.values())
    assert not pairs["yes", "no"] + pairs["no", "yes"]


def test_every_table_of_the_evidence_has_measures_runs_and_draws():
    tables = advice.settings("tables")
    assert [s.name for s in tables] == list(advice.plans("tables.yaml"))
    every = {"unskew", "fedavg", "fedprox", "scaffold", "local", "centralised"}
    for s in tables:
        assert len(s.poolings) >= 5
        assert (every <= s.scores.keys()) is (s.name not in after_rule())
        assert all(len(s.scores[m].sites) >= 5 for m in ("unskew", "fedavg", "local"))
