"""Real processes whose sites end with models of their own: each predicts with the bits of the simulator's
personal model."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import unskew
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import STUDY, Loopback, samples
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
