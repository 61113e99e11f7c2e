"""Real processes on loopback: what guards sites' updates. Sums alone are read, of which one site is killed in
the middle of a round; and noise at the coordinator and at the sites, which nobody can draw again, with
budgets that end runs."""

from __future__ import annotations

import json
import re

import pytest
import torch

import unskew
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import STUDY, Loopback, samples
from unskew.records import checkpoints

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.flower]
ON = ("--secure-aggregation", "on")
OF_CLIENTS = "dp(epsilon=2.5, noise_multiplier=2.0)"
"""One round costs 1.993, two cost 2.943."""
OF_SAMPLES = "fedprox+dpsgd(noise_multiplier=4.0)"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Loopback(tmp_path_factory.mktemp("lung"), "abcd")
    try:
        federation.up("abcd")
        yield federation
    finally:
        federation.stop()


def test_four_sites_end_with_the_simulators_bits(federation):
    federation.start_run("whole", *ON)
    result = json.loads(federation.end("run"))
    told = [e for e in federation.events("whole") if e["code"] != "round"]
    assert told == []
    simulated = unskew.run(**STUDY, data=samples(4), lanes="1", clients=4, secure_aggregation="on")
    assert result["sha256"] == simulated.digest
    assert "only in the sum of 3 or more clients" in federation.log("runs/whole/server")


def ended(federation, name: str, method: str, rounds: int, code: int = 0) -> str:
    """The last line of a run of this method at two of the sites."""
    study = STUDY | {"method": f'"{method}"', "rounds": rounds}
    whole = (federation.root / "study.yaml").read_text()
    (federation.root / "study.yaml").write_text("\n".join(f"{n}: {v}" for n, v in study.items()))
    federation.start_run(name, "--without", "c", "--without", "d", wait="30s")
    told = federation.end("run", code)
    (federation.root / "study.yaml").write_text(whole)
    return told


def weights(federation, name: str) -> torch.Tensor:
    tree, _ = checkpoints.read(federation.root / f"runs/{name}/state.safetensors")
    return torch.cat([t.flatten().double() for t in tree["w"].values()])


def account(federation, name: str) -> str:
    return (federation.root / f"runs/{name}/privacy.json").read_text()


def test_the_coordinators_noise_is_the_operating_systems_and_its_budget_ends_the_run(federation):
    """That two runs differ, tests/federation/test_dp.py sees without processes."""
    ended(federation, "one", OF_CLIENTS, rounds=3)
    assert len(federation.rounds("one")) == 1
    assert any(e["code"] == "E323" for e in federation.events("one"))
    assert "drawn from the operating system" in account(federation, "one")


def test_a_sites_noise_is_new_in_every_run_and_its_budget_refuses_the_next(federation):
    for name in ("two", "three"):
        ended(federation, name, OF_SAMPLES, rounds=1)
        assert "drawn from the operating system" in account(federation, name)
    same = weights(federation, "two") == weights(federation, "three")
    assert float(same.double().mean()) < 0.01  # a few of thousands round to the same number
    spent = json.loads((federation.root / "site-a/spent.json").read_text())
    costs = sorted(run["epsilon"] for run in spent.values() if run["epsilon"])
    assert costs[0] == costs[1] > 0
    assert costs[2:] == pytest.approx(
        [1.9931], abs=1e-4
    )  # the guarantee of clients counts at the site as well
    for site in "ab":
        budget = f"epsilon={sum(costs) + costs[0] / 2}"
        federation.do("site", "policy", "--folder", f"site-{site}", "--set", budget)
    ended(federation, "four", OF_SAMPLES, rounds=1, code=2)
    refused = re.findall(
        "E520 ([ab]): .* too little of the budget .* is left for the study",
        federation.log("runs/four/server"),
    )
    assert sorted(refused) == ["a", "b"]
    assert json.loads((federation.root / "site-a/spent.json").read_text()).keys() == spent.keys()


def test_a_site_that_is_killed_after_it_has_trained_is_left_out_of_the_sum(federation):
    """It is among the sites that the sum began with, so shares of its keys may be out already. The seed is
    another one than that of the run of all four, whose round 2 had the same numbers: what differed from that
    sum would be the update of `d`."""
    before = len(re.findall("trained on", federation.log("d")))
    federation.start_run("killed", *ON, "--rounds", "4", "--seed", "1", deadline="10s")
    federation.until(lambda: len(re.findall("trained on", federation.log("d"))) == before + 2, 90)
    federation.kill("d")
    result = json.loads(federation.end("run"))
    events = federation.events("killed")
    assert [e["answered"] for e in events if e["code"] == "round"] == [
        [0, 1, 2, 3],
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert {e["code"] for e in events if e["code"] != "round"} <= {"E311"}
    assert all(e["text"].startswith("d ") for e in events if e["code"] != "round")
    assert result["scores"]["global"] > 0.3
