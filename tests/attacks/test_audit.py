"""Audits: the bound is that of the theorem, refutes a claim whose noise is off, and no true one."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from tests.attacks.runs import trained
from tests.cli.calling import call
from unskew.attacks.kinds import audit
from unskew.attacks.target_run import TargetRun
from unskew.data.clients.partition import Index
from unskew.privacy.accounting import gaussian_epsilon
from unskew.records import schema
from unskew.runs import resolve

DELTA = 1e-5


def release(sigma: float, seed: int, m: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian release, one entry a canary: what the auditor sees, and which canaries were in."""
    rng = np.random.default_rng(seed)
    inside = rng.random(m) < 0.5
    return inside + sigma * rng.normal(size=m), inside


def bound(sigma: float, seed: int) -> float:
    return audit.bound(audit.count_guesses(*release(sigma, seed), 0.2), DELTA)


def test_a_true_claim_holds_in_nineteen_of_twenty_audits():
    claim = gaussian_epsilon(1 / 1.0, DELTA)
    assert sum(bound(1.0, seed) <= claim for seed in range(20)) >= 19


def test_a_claim_whose_noise_is_off_is_refuted():
    claim = gaussian_epsilon(1 / 1.0, DELTA)
    bounds = [bound(1e-6, seed) for seed in range(20)]
    assert min(bounds) > 3  # 100 right guesses of 100
    assert (
        min(audit.bound(audit.count_guesses(*release(1e-6, s, 5000), 1.0), DELTA) for s in range(3)) > claim
    )


def test_the_bound_by_hand():
    """Without delta, 10 of 10 right guesses: q^10 = 0.05."""
    q = 0.05**0.1
    assert audit.bound((10, 10, 10), 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert audit.bound((10, 10, 5), 0.0) == 0.0
    assert audit.bound((10**6, 10**6, 10**6), 0.0) == pytest.approx(
        math.log(1 / (1 / 0.05 ** (1e-6) - 1)), rel=1e-6
    )


def test_delta_costs_what_the_theorem_says():
    m, r, v, epsilon, delta = 50, 20, 17, 0.7, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    alpha = max(sum(binom.pmf(k, r, q) for k in range(v - i, v)) / i for i in range(1, v + 1))
    beta = sum(binom.pmf(k, r, q) for k in range(v, r + 1))
    assert audit.chance((m, r, v), epsilon, delta) == pytest.approx(beta + 2 * m * delta * alpha, rel=1e-9)
    assert audit.bound((m, r, v), delta) < audit.bound((m, r, v), 0.0)


def test_a_true_claim_for_clients_is_not_refuted_by_canaries_that_are_samples():
    """A canary turns its client's update round, of the largest norm: the sum moves by twice the clip."""
    claim = audit.Claim(gaussian_epsilon(1 / 2.0, DELTA), DELTA)
    of_samples = claim.replaced()
    bounds = []
    for seed in range(20):
        seen, inside = release(1.0, seed, 20_000)  # 2 clips at noise 2
        counts = audit.count_guesses(seen, inside, 0.02)
        bounds.append((audit.bound(counts, claim.delta), audit.bound(counts, of_samples.delta)))
    assert sum(first > claim.epsilon for first, _ in bounds) > 1  # one in twenty may be
    assert max(second for _, second in bounds) <= of_samples.epsilon
    assert of_samples == audit.Claim(2 * claim.epsilon, (1 + math.exp(claim.epsilon)) * DELTA)
    assert audit.Claim(20.0, 1e-3).replaced() == audit.Claim(math.inf, 0.0) == audit.NO_CLAIM.replaced()


def test_a_run_that_its_budget_has_ended_is_audited_beside_what_it_claims(tmp_path):
    """It has fewer rounds than its settings ask for, and is finished all the same."""
    pytest.importorskip("dp_accounting")
    settings = {"clients": 10, "samples": 5, "availability": "poisson:0.5", "rounds": 9}
    run = trained(tmp_path, "dp(epsilon=4,noise_multiplier=1.0)", **settings)
    done = call("audit", str(run), "--set", "unit=client", "--json")
    assert done.code == 0, done.err
    finding = json.loads(done.out)["audit"]
    (score,) = finding["scores"]
    claim = schema.read_privacy(run)["dp"]["epsilons"][0]["epsilon"]
    assert score["ceiling"] == claim < 4
    assert score["value"] <= claim
    assert finding["doubts"] == []
    (of_samples,) = json.loads(call("audit", str(run), "--json").out)["audit"]["scores"]
    assert of_samples["ceiling"] == pytest.approx(2 * claim)
    table = (run / "report.html").read_text().split('id="leaves"')[1].split("</section>")[0]
    assert f"epsilon {claim:.4g}, of every model" in table
    assert "epsilon infinite, against the server" in table


def claim_of(run, unit: str = "sample", again=None) -> audit.Claim:
    target = TargetRun(run)
    try:
        return audit.claim_of(target, unit, again(target) if again else target.run)
    finally:
        target.close()


def test_the_claim_is_no_less_than_that_of_the_smaller_clients_that_were_trained_for_the_audit(tmp_path):
    """With half of its samples left out a client draws the others twice as often, and protects them less."""
    pytest.importorskip("dp_accounting")
    run = trained(tmp_path, "dpsgd(clip=1.0,noise_multiplier=2.0)", rounds=2, samples=80)
    kept = schema.read_privacy(run)["dpsgd"]["epsilons"][0]["epsilon"]

    def smaller(target):
        lists = [rows[: len(rows) // 2] for rows in target.run.federation.train]
        federation = replace(target.run.federation, train=Index.of(lists))
        return resolve.run_on(federation, target.run.settings, target.run.method)

    assert claim_of(run).epsilon == kept
    assert claim_of(run, again=smaller).epsilon > 1.2 * kept
    assert claim_of(run, "client") == audit.NO_CLAIM
