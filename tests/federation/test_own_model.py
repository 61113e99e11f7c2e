"""After a run over a network a site has its own model in its own folder, the one that the simulator has of
that client."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from tests.federation import fake
from unskew.errors import UsageError

SITE = 2


"""With 33 samples of all classes."""


@functools.cache
def simulated(name: str) -> unskew.Result:
    settings = fake.small(name).as_dict()
    return unskew.run(
        name, fake.federation(), **{n: v for n, v in settings.items() if n not in ("method", "data")}
    )


def trained(folder: Path, name: str, **changes) -> Path:
    """The folder of the run at a site, once the run is over."""
    sites = fake.sites(folder / "sites", fake.federation())
    for site in sites.values():
        data = replace(site.load(), **changes)
        site.load = lambda data=data: data
    fake.run(folder / "run", fake.Direct(sites), fake.small(name))
    (run,) = (folder / f"sites/s{SITE}/runs").iterdir()
    return run


@pytest.fixture(scope="module")
def of_fedbn(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("fedbn"), "fedbn")


@pytest.mark.parametrize("name", ["fedbn", "unskew", "ditto", "local"])
def test_a_sites_own_model_is_the_simulators_to_the_bit(tmp_path, name):
    own, x = unskew.load(trained(tmp_path, name)), fake.federation().x_test
    assert (own.t, own.own.site, own.own.client) == (fake.small(name).rounds, "s2", SITE)
    assert np.array_equal(own.predict_proba(x), simulated(name).predict_proba(x, client=SITE))
    assert repr(own).startswith("<s2's own model after round 3 of 3")
    with pytest.raises(UsageError, match=r"E131 .* holds the model of s2 alone"):
        own.predict(x, client="s1")


def test_where_no_site_has_a_model_of_its_own_it_is_the_global_one(tmp_path):
    own, x = unskew.load(trained(tmp_path, "fedavg")), fake.federation().x_test
    assert (own.own.client, own.own.kept) == (None, 0)
    assert np.array_equal(own.predict_proba(x), simulated("fedavg").predict_proba(x))
    assert "the model that s2 was sent" in repr(own)


def own_data(folder: Path) -> unskew.Dataset:
    """What the site took part with."""
    return fake.sites(folder, fake.federation())[1000 - SITE].load()


@pytest.mark.parametrize("name", ["ifca", "fedbabu(finetune_epochs=2)"])
def test_a_model_that_is_made_with_the_sites_samples_is_given_them(tmp_path, name):
    """It could not be used at all after a run over a network."""
    run, x = trained(tmp_path, name), fake.federation().x_test
    with pytest.raises(
        UsageError, match=r"E131 this method makes a client's own model with its samples, .* give them at a"
    ):
        unskew.load(run).predict(x)
    own = unskew.load(run, data=own_data(tmp_path / "again"))
    assert np.array_equal(own.predict_proba(x), simulated(name).predict_proba(x, client=SITE))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            lambda d: {"x": d.x[1:], "y": d.y[1:]},
            r"E131 .* holds 32 training samples of .*; s2 trained on 33 of",
        ),
        (lambda d: {"y": np.roll(d.y, 1) * 0 + d.y[0]}, r"E131 .* holds 33 training samples .*by class"),
        (lambda d: {"classes": tuple(reversed(d.classes))}, r"E131 .* holds 33 training samples"),
    ],
)
def test_other_data_than_the_sites_are_refused(tmp_path, of_fedbn, changes, says):
    mine = own_data(tmp_path / "again")
    with pytest.raises(UsageError, match=says):
        unskew.load(of_fedbn, data=replace(mine, **changes(mine)))


def test_it_is_exported_and_predicts(tmp_path, of_fedbn):
    done = call("export", str(of_fedbn), str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert "s2's own model after round 3 of 3, with what it kept after round 3" in done.err
    facts = json.loads((tmp_path / "out/model.json").read_text())
    assert (facts["client"], facts["round"]) == ("s2", 3)
    np.savez(tmp_path / "new.npz", x=fake.federation().x_test)
    said = call("predict", str(of_fedbn), str(tmp_path / "new.npz"))
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == 61


MEAN, STD = (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)


def test_the_coordinator_scales_what_it_predicts_as_sites_scaled_a_set_that_everybody_has(tmp_path):
    trained(tmp_path, "fedavg", mean=MEAN, std=STD)
    run, x = unskew.load(tmp_path / "run"), fake.federation().x_test
    assert run.federation.applied == (MEAN, STD)
    (site,) = (tmp_path / f"sites/s{SITE}/runs").iterdir()
    assert np.array_equal(run.predict_proba(x), unskew.load(site).predict_proba(x))
