"""Real processes whose sites end with models of their own, or hold samples of several inputs."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json

import numpy as np

import unskew
from tests.federation.loopback import STUDY, Loopback, samples
from tests.federation.test_several_inputs import MODULE
from unskew.data.clients.federation import Federation

pytestmark = [pytest.mark.slow, pytest.mark.flower]

SITES = "ab"


METHODS = ["fedper", "ditto"]


"""One whose sites share a part of one model, and one that gives every site a second model."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Loopback(tmp_path_factory.mktemp("own"), sites=SITES)
    try:
        federation.up(SITES)
        yield federation
    finally:
        federation.stop()


def simulated(method: str) -> unskew.Result:
    """Over a network updates are clipped, and no site weighs more than half, unless that is refused; so it is
    here, too."""
    dealt = samples(len(SITES))
    inputs = (dealt.x, dealt.y, dealt.x_test, dealt.y_test)
    data = Federation("digits", *inputs, dealt.classes, dealt.train, dealt.test, dealt.skew)
    study = {**STUDY, "method": f"{method}+clip_median"}
    return unskew.run(**study, data=data, lanes="1", clients=len(SITES), cap=0.5)


@pytest.mark.parametrize("method", METHODS)
def test_each_sites_own_model_is_the_simulators_personal_one(federation, method):
    """Read from the folder that the site's process has written, which answers for its own client alone."""
    before = {site: set((federation.root / f"site-{site}/runs").glob("*")) for site in SITES}
    (federation.root / "study.yaml").write_text(
        "\n".join(f"{n}: {v}" for n, v in {**STUDY, "method": method}.items())
    )
    federation.start_run(method, "--min-sites", str(len(SITES)), deadline="120s")
    result = json.loads(federation.end("run"))
    alone, x = simulated(method), samples(len(SITES)).x_test
    assert result["sha256"] == alone.digest
    answers = []
    for k, site in enumerate(SITES):
        (run,) = set((federation.root / f"site-{site}/runs").glob("*")) - before[site]
        own = unskew.load(run)
        assert (own.own.site, own.own.client, own.t) == (site, k, STUDY["rounds"])
        answers.append(own.predict_proba(x))
        assert np.array_equal(answers[k], alone.predict_proba(x, client=k))
    assert not np.array_equal(*answers), "the sites' models are one and the same"


SEVERAL_STUDY = {"method": "scaffold", "rounds": 2, "epochs": 1, "seed": 0, "eval_every": 2}


def inputs_of(x: np.ndarray) -> dict[str, np.ndarray]:
    """Digits [N, 1, 8, 8] as a part of 4 by 4 pixels and one number."""
    return {"scan": x[:, :, 2:6, 2:6], "age": x[:, 0, 0, 3]}


class Several(Loopback):
    """A federation whose every site holds an .npz of two inputs."""

    def _write_data(self, site: str, k: int) -> None:
        dealt = samples(len(SITES))
        train, test = dealt.train[k], dealt.test[k]
        arrays = {f"x_train.{n}": v for n, v in inputs_of(dealt.x[train]).items()}
        arrays |= {f"x_test.{n}": v for n, v in inputs_of(dealt.x_test[test]).items()}
        labels = {"y_train": dealt.y[train], "y_test": dealt.y_test[test]}
        np.savez(self.root / f"{site}.npz", **arrays, **labels, classes=np.array(dealt.classes))

    def start_site(self, site: str, folder: str = "", approve: str = "all") -> None:
        places = ["--data", f"{site}.npz", "--folder", f"site-{site}", "--model", "net.py:Net"]
        self.start(site, "site", "run", *places, "--approve", approve, "--metrics", "0")


def test_sites_with_several_inputs_end_with_the_simulators_weights(tmp_path):
    (tmp_path / "net.py").write_text(MODULE)
    federation = Several(tmp_path, sites=SITES)
    (tmp_path / "study.yaml").write_text(
        "\n".join(f"{n}: {v}" for n, v in {**SEVERAL_STUDY, "model": "net.py:Net"}.items())
    )
    try:
        federation.up(SITES)
        federation.start_run("several", "--min-sites", "2", "--model", "net.py:Net", deadline="120s")
        result = json.loads(federation.end("run"))
    finally:
        federation.stop()
    dealt = samples(len(SITES))
    packed = unskew.data.arrays(
        inputs_of(dealt.x), dealt.y, inputs_of(dealt.x_test), dealt.y_test, classes=dealt.classes
    )
    alone = unskew.run(
        **{**SEVERAL_STUDY, "method": "scaffold+clip_median"},
        data=unskew.data.Federation(
            "digits",
            packed.x,
            packed.y,
            packed.x_test,
            packed.y_test,
            packed.classes,
            dealt.train,
            dealt.test,
            "sites",
            layout=packed.layout,
        ),
        model=f"{tmp_path / 'net.py'}:Net",
        lanes="1",
        clients=len(SITES),
    )
    assert result["sha256"] == alone.digest
