"""Constants that clients agree upon are those of all their samples in one place, whatever these are on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unskew
from tests.federation import fake
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


def test_a_model_that_looks_words_up_is_refused():
    tokens = rng.integers(0, 9, (40, 6))
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(24, 2))
    with pytest.raises(UsageError, match=r"E108 'standardise' cannot run here: it scales inputs"):
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
