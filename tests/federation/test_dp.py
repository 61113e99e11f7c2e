"""Client-level differential privacy over a network: whose noise it is, and that no reply counts because of
the others."""

from __future__ import annotations

import pytest

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")

import json

import torch

from tests.federation import fake
from tests.federation.test_bad_replies import meddling, silence
from tests.federation.test_outliers import events, run, times
from tests.federation.test_policy import allow, hello
from tests.federation.test_site_exchange import Stop
from unskew.federation.site.study_review import forecast_settings

QUIET = "dp(epsilon=0, noise_multiplier=0.1, clip=1e-4)"
LOUD = "dp(epsilon=0, noise_multiplier=50.0)"


def weights(tmp_path, name, method, **changes):
    sites = fake.sites(tmp_path / f"{name}-sites", fake.federation())
    _, state, said = fake.run(tmp_path / name, fake.Direct(sites), fake.small(method, **changes))
    return torch.cat([t.flatten() for t in state.weights.values()]), said


def test_noise_and_cohorts_are_not_drawn_from_the_studys_seed(tmp_path):
    """The sites know the seed: whoever draws the noise again takes it away."""
    (first, said), (second, _) = (weights(tmp_path, name, LOUD, rounds=1) for name in ("one", "two"))
    assert float((first - second).std()) == pytest.approx(2**0.5 * 50.0 / len(fake.SIZES), rel=0.05)
    assert "drawn from the operating system" in (tmp_path / "one" / "privacy.json").read_text()
    assert not any("E5" in text for text in said)


def test_a_reply_out_of_all_proportion_is_clipped_and_nobodys_is_dropped_because_of_others(tmp_path):
    """To drop one reply because of the others would make every client's part depend on each."""
    _, state, _ = run(tmp_path, meddling(times(1e12)), fake.small(QUIET))
    assert events(tmp_path / "run") == []
    start = fake.Direct(fake.sites(tmp_path / "more", fake.federation()), meddling(silence))
    _, quiet, _ = fake.run(tmp_path / "run2", start, fake.small(QUIET))
    apart = torch.cat([(state.weights[n] - quiet.weights[n]).flatten() for n in state.weights])
    assert float(apart.norm()) < 0.1


def test_noise_on_samples_gradients_is_not_drawn_from_the_studys_seed_and_no_loss_leaves(tmp_path):
    """What protects samples against the coordinator must not be drawn from a seed that it chose."""
    method = "dpsgd(noise_multiplier=1.0)"
    (first, said), (second, _) = (weights(tmp_path, name, method, rounds=1) for name in ("one", "two"))
    assert float((first == second).double().mean()) < 0.01  # a few of thousands round to the same number
    assert not any("E5" in text for text in said)
    assert "drawn from the operating system" in (tmp_path / "one" / "privacy.json").read_text()
    rows = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert not [r for r in rows if (r["scope"], r["metric"]) == ("train", "loss")]


def test_a_coordinator_that_is_killed_in_a_round_hears_the_same_noise_again(tmp_path):
    heard: dict[str, list[str]] = {}

    def watched(kills):
        def meddle(site, asked, honest):
            header = json.loads(honest.text)
            if (header["kind"], header["t"]) == ("train", 2):
                heard.setdefault(site, []).append(header["sha256"])
                if kills and site == "s4":  # the last one
                    raise Stop
            return honest

        return meddle

    sites = fake.sites(tmp_path / "sites", fake.federation())
    study = fake.small("dpsgd(noise_multiplier=1.0)", rounds=2)
    with pytest.raises(Stop):
        fake.run(tmp_path / "run", fake.Direct(sites, watched(True)), study)
    fake.run(tmp_path / "run", fake.Direct(sites, watched(False)), study)
    assert {len(digests) for digests in heard.values()} == {2}
    assert {len(set(digests)) for digests in heard.values()} == {1}
    assert events(tmp_path / "run") == []


def test_a_sites_budget_counts_sums_beside_steps(tmp_path):
    site = fake.sites(tmp_path / "sites", fake.federation())[998]
    allow(site, epsilon=30.0)
    kept = "dpsgd(noise_multiplier=8.0, sums_noise=0.5)"
    assert "hello" in hello(site, f"fedprox+{kept}", rounds=50)
    assert hello(site, f"fedproto+{kept}", rounds=50, run="r2")["code"] == "E520"


def test_where_each_sample_is_protected_no_training_loss_leaves_and_the_operator_reads_none(tmp_path):
    losses = set()

    def read(site, asked, honest):
        losses.add(json.loads(honest.text).get("loss", 0.0))
        return honest

    sites = fake.sites(tmp_path / "sites", fake.federation())
    for node in (999, 997):  # a single sample, and two
        del sites[node]
    method = "dpsgd(clip=1.0,noise_multiplier=1.0)"
    fake.run(tmp_path / "run", fake.Direct(sites, read), fake.small(method, rounds=1))
    assert losses == {0.0}
    for name, told in ((method, False), ("fedavg", True)):
        _, lines = forecast_settings(fake.data_of(fake.federation(), 0), fake.small(name, rounds=1))
        assert any("number of training samples, a round" in line for line in lines)
        assert any("mean training loss" in line for line in lines) == told
