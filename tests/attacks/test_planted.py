"""Faults of differential privacy, planted one by one: an audit refutes the claim of each, and of nothing that
is sound.

What `unskew audit` sees is a merged model. Here an auditor of the mechanism itself sees more: every canary is
a client whose update is one axis of the sum, as far out and with as large a size as it likes. What such an
auditor cannot see either, a cohort without replacement, is caught by its law: `privacy/test_dp.py`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.attacks.runs import noise, trained
from tests.cli.calling import call
from unskew.attacks.kinds import audit
from unskew.core.replies import Reply, Ups
from unskew.privacy import dp
from unskew.privacy.dpsgd import DPSGD
from unskew.round import randomness
from unskew.round.randomness import SeededSource

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")

AXES, RELEASES, SHARE, SEED = 400, 50, 0.05, 7
UNKNOWN = SeededSource(1234)
"""Noise of which the auditor does not know the seed, the same in every run of these tests."""
Z, DELTA = 2.0, 1e-5
FED = SimpleNamespace(shared=("a",), clients=AXES, sampled=1.0, rounds=1)
W = {"a": torch.zeros(AXES)}


def mutant(module: ModuleType, line: str, becomes: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with one line of its source changed."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(line) == 1, line
    changed = ModuleType("planted")
    monkeypatch.setitem(sys.modules, "planted", changed)
    exec(compile(source.replace(line, becomes), "planted", "exec"), changed.__dict__)
    return changed


def summed(part: Any, inside: np.ndarray, normal: Callable[..., torch.Tensor]) -> np.ndarray:
    """What a round releases, [AXES]: of each axis the sum of the one client that moves it, and noise."""
    far = 10 * torch.eye(AXES)
    ups = Ups.of([Reply(k, 10.0, {"a": far[k]}) for k in np.flatnonzero(inside)], 1)
    replies, _ = part.protect(W, {}, ups, FED, normal)
    return torch.stack([r.weights["a"] for r in replies[:1]]).sum(0).double().numpy() * len(replies)


def refuted(part: Any, source: randomness.RandomSource, view: str = "plain") -> tuple[float, float]:
    """(the bound of an audit, the claim). view: what the auditor takes away: nothing, the noise of the next
    round, in which no canary is, or the noise that it draws itself from the study's seed."""
    rng = np.random.default_rng(3)
    scores, present = list[np.ndarray](), list[np.ndarray]()
    for t in range(1, 2 * RELEASES, 2):
        inside = rng.random(AXES) < 0.5
        seen = summed(part, inside, source.normal(t, "dp"))
        if view == "next":
            seen = seen - summed(part, np.zeros(AXES, bool), source.normal(t + 1, "dp"))
        if view == "seed":
            seen = seen - Z * SeededSource(SEED).normal(t, "dp")((AXES,), "w/a").numpy()
        scores.append(seen)
        present.append(inside)
    counts = audit.count_guesses(np.concatenate(scores), np.concatenate(present), SHARE)
    return audit.bound(counts, DELTA), part.spent(FED, 1)


def sound(**settings: Any) -> dp.DP:
    return dp.DP(epsilon=0, noise_multiplier=Z, delta=DELTA, **settings)


@pytest.mark.parametrize("view", ["plain", "next", "seed"])
def test_a_sound_mechanism_is_not_refuted(view):
    found, claim = refuted(sound(), UNKNOWN, view)
    assert found < claim
    assert view != "plain" or found > claim / 2  # the auditor is a strong one


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("keep = min(1.0, clip / norm) if norm else 1.0", "keep = 1.0"),
        ("deviation = z / math.sqrt(1 - r) * clip", "deviation = z / 2 / math.sqrt(1 - r) * clip"),
        ("total[path] += keep * t", "total[path] += keep * reply.size * t"),
    ],
    ids=["no clip", "half the noise", "weighted mean"],
)
def test_a_planted_fault_of_the_mechanism_is_refuted(line, becomes, monkeypatch):
    planted = mutant(dp, line, becomes, monkeypatch)
    found, claim = refuted(planted.DP(epsilon=0, noise_multiplier=Z, delta=DELTA), UNKNOWN)
    assert found > claim


class SameNoise(SeededSource):
    """A source with the noise of round 1 in every round."""

    def normal(self, t: int, part: str) -> randomness.Normal:
        return super().normal(1, part)


def test_noise_that_is_the_same_twice_is_refuted():
    found, claim = refuted(sound(), SameNoise(SEED), "next")
    assert found > claim
    assert refuted(sound(), SeededSource(SEED), "next")[0] < claim


def test_noise_from_the_studys_seed_is_refuted_by_whoever_knows_the_seed():
    """Every site knows it; so a simulation says that its guarantee holds for a simulation only."""
    found, claim = refuted(sound(), SeededSource(SEED), "seed")
    assert found > claim
    assert "simulation only" in SeededSource(SEED).described


RUN = {
    "clients": 2,
    "samples": 40,
    "rounds": 1,
    "epochs": 40,
    "lr": 0.3,
    "model": "mlp(hidden=[64])",
    "batch": 20,
}
FAULTS = {
    "sound": ("dpsgd(clip=0.01,noise_multiplier=30.0)", {}),
    "no clip": ("dpsgd(clip=0.0001,noise_multiplier=30.0)", {"sample_grad": lambda self, g, c: g}),
    "no noise": ("dpsgd(clip=100.0,noise_multiplier=30.0)", {"step_noise": 1e-6}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_command_refutes_a_run_that_learns_by_heart_what_it_should_protect(fault, tmp_path, monkeypatch):
    method, patches = FAULTS[fault]
    for name, planted in patches.items():
        monkeypatch.setattr(DPSGD, name, planted)
    run = trained(tmp_path, method, noise(tmp_path, 300), **RUN)
    done = call("audit", str(run), "--set", "share=0.5", "--json")
    assert done.code == 0, done.err
    finding = json.loads(done.out)["audit"]
    (score,) = finding["scores"]
    assert 0 < score["ceiling"] < 1.5
    assert math.isfinite(score["value"])
    assert (score["value"] > score["ceiling"]) == bool(patches)
    assert ("the audit refutes it" in " ".join(finding["doubts"])) == bool(patches)
