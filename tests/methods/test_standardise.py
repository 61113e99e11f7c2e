"""Constants that clients agree upon are those of all their samples in one place, whatever these are on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unskew
from tests.federation import fake
from unskew.core import Ups
from unskew.errors import UsageError

rng = np.random.default_rng(5)
Y = np.arange(240) % 2
X = np.stack(
    [120 + 12 * Y + 9 * rng.standard_normal(240), 1e5 + rng.standard_normal(240) + 2 * Y, np.full(240, 7.3)],
    1,
).astype(np.float32)
"""Blood pressure, a column far from 0 in units of its deviation, and one that never varies."""
TINY = {"clients": 4, "skew": "dirichlet:0.3", "rounds": 4, "epochs": 2, "model": "mlp"}


def test_the_constants_are_those_of_all_samples_in_one_place():
    together = unskew.run("fedavg", (X, Y, X[:60], Y[:60]), normalise="dataset", **TINY)
    apart = unskew.run("standardise", (X, Y, X[:60], Y[:60]), **TINY)
    mean, std = together.federation.applied
    down = apart.trained.end.down["standardise"]
    assert np.allclose(down["mu"], mean, rtol=1e-6)
    assert np.allclose(down["sigma"], std, rtol=2e-3)
    assert down["sigma"][2] == 1
    assert apart.scores()["last"] == pytest.approx(together.scores()["last"], abs=0.03)
    assert apart.scores()["last"] > 0.8


def test_without_it_these_samples_teach_nothing():
    assert unskew.run("fedavg", (X, Y, X[:60], Y[:60]), normalise="none", **TINY).scores()["last"] < 0.7


def test_new_samples_are_scaled_and_exported_so(tmp_path):
    run = unskew.run("standardise", (X, Y, X[:60], Y[:60]), **TINY)
    assert (run.predict(X[:60]) == Y[:60]).mean() == pytest.approx(run.scores()["last"])
    run.export(tmp_path / "out", "torch-export")
    graph = torch.export.load(tmp_path / "out/model.pt2").module()
    assert torch.allclose(
        graph(torch.tensor(X[:9])).softmax(1), torch.tensor(run.predict_proba(X[:9])), atol=1e-5
    )


def test_where_nobody_answers_inputs_stay_as_they_are():
    before = {"mu": torch.zeros(3), "sigma": torch.ones(3)}
    assert unskew.Standardise().pool({}, before, Ups.of([]), None) == ({}, before)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other", ["norm(mean=(0.5,),std=(0.2,))", "fedrdn", "dpsgd(clip=1.0, noise_multiplier=1.0)"]
)
def test_what_it_cannot_go_with_is_refused(other):
    with pytest.raises(UsageError, match=r"E10[78]"):
        unskew.run(f"standardise+{other}", "digits", rounds=1, clients=3)


def test_a_model_that_looks_words_up_is_refused():
    tokens = rng.integers(0, 9, (40, 6))
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(24, 2))
    with pytest.raises(
        UsageError, match=r"E108 'standardise' cannot run here: it scales inputs, and the model looks them up"
    ):
        unskew.run("standardise", (tokens, Y[:40]), model=net, clients=2, rounds=1, skew="iid")


def test_sites_whose_samples_are_unscaled_are_named_and_it_mends_that(tmp_path):
    """Over a network nothing was scaled and nobody was told: the first model of a table learnt nothing."""
    sites = fake.sites(tmp_path / "sites", fake.federation())
    for site in sites.values():
        given = site.load()
        data = unskew.data.arrays(
            1000 * given.x, given.y, 1000 * given.x_test, given.y_test, classes=given.classes
        )
        site.load = lambda data=data: data
    heard: list[str] = []
    sites[1000].say = heard.append
    loop, _, _ = fake.run(tmp_path / "plain", fake.Direct(sites), fake.small("fedavg"))
    warned = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E504"]
    assert [text.partition(":")[0] for text in warned] == ["s0", "s1", "s2", "s3", "s4"]
    assert any("E504 this study takes samples as they are: " in text for text in heard)
    loop, _, _ = fake.run(tmp_path / "mended", fake.Direct(sites), fake.small("standardise"))
    assert not [e for e in loop.record.rows["events"] if e["code"] == "E504"]
