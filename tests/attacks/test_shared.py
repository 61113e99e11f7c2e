"""Statistics, prototypes and noisy means: what they tell of the samples behind them."""

from __future__ import annotations

import pytest
import torch

from tests.attacks.runs import trained
from unskew.attacks.attack import Score
from unskew.attacks.auxiliary_samples import unseen
from unskew.attacks.kinds.match import Match
from unskew.attacks.kinds.prototype import Prototype, _rows
from unskew.attacks.kinds.statistics import Statistics
from unskew.attacks.target_run import TargetRun
from unskew.errors import UsageError


def scores(path, attack) -> dict[tuple[str, str], Score]:
    target = TargetRun(path)
    listed = {
        (s.of, s.metric): s for s in reversed(attack.attempt(target, 0).scores)
    }  # of several payloads the first
    target.close()
    return listed


def test_two_releases_around_one_sample_give_its_statistics(tmp_path):
    listed = scores(trained(tmp_path, "fedrdn"), Statistics(samples=20))
    error = listed["two releases around one sample", "error of its statistics"]
    assert error.value < 1e-3 < 0.5 < error.floor
    assert listed["its largest class", "accuracy"].n == 3


@pytest.fixture(scope="module")
def rebafl(tmp_path_factory):
    return trained(
        tmp_path_factory.mktemp("rebafl"), "rebafl", samples=40, model="mlp(hidden=[64])", epochs=3
    )


def test_prototypes_of_one_sample_tell_more_than_those_of_many(rebafl):
    listed = scores(rebafl, Prototype(samples=12, behind=(1, 3), own=120, steps=2, clients=2))
    groups = {of.split(",")[0] for of, _ in listed}
    assert groups == {"as sent", "of 1 sample", "of 3 samples"}
    one, few = (listed[f"{of}, linear", "SSIM above class mean"] for of in ("of 1 sample", "of 3 samples"))
    assert one.value > max(few.value, 0.02)
    assert one.ceiling > one.value
    assert not [s.doubt for s in listed.values() if s.doubt]
    assert one.n == 12
    # stands for the attack, and what nobody sent does not
    assert listed["as sent, linear", "SSIM above class mean"].main
    assert not one.main


def test_prototypes_with_noise_are_attacked_as_they_were_sent(tmp_path):
    """Those of a few samples were computed without the noise; a class that noise hides was a traceback."""
    pytest.importorskip("dp_accounting")
    target = TargetRun(trained(tmp_path / "little", "fedproto+dpsgd(sums_noise=0.4)", samples=40))
    listed = Prototype(samples=20, behind=(1,), own=60, steps=5, clients=1).attempt(target, 0).scores
    target.close()
    assert {s.of.split(",")[0] for s in listed} == {"as sent"}
    hidden = TargetRun(trained(tmp_path / "much", "fedproto+dpsgd", samples=40))
    with pytest.raises(UsageError, match="no client that can be attacked sent a count above 0"):
        Prototype(own=100, steps=1).attempt(hidden, 0)


def test_a_prototype_is_read_with_the_model_of_the_client_that_sent_it(rebafl):
    """It is the mean of the features behind it under that model, and not under the merged one."""
    target = TargetRun(rebafl)
    attack = Prototype(samples=1000, behind=(), steps=1)
    plains, _ = attack._plains(target, torch.zeros(10, 1, 8, 8), 0)
    (group,) = attack._groups(target, target.run.method.parts[0], plains, 0)
    own = unseen(target.run.federation, target.trainer.samples.x[:1], 0, most=60)
    net, start = target.trainer.net, target.last_round.start
    assert start is not None
    for reply in target.last_round.replies:
        client = {**start.weights, **reply.weights}
        training = attack._victim(target, reply.client, own, 0).training
        assert torch.allclose(training.sent, net.features_of(client, target.seen(own.x)))
        c = int(reply.shares["rebafl"]["counts"].argmax())
        sent = reply.shares["rebafl"]["sums"][c] / reply.shares["rebafl"]["counts"][c]
        assert any(torch.equal(h, sent) for h in group.h)
        x = target.seen(target.trainer.samples.x[_rows(target, reply.client, c)])
        ours, merged = (net.features_of(w, x).mean(0) for w in (client, target.final.weights))
        assert torch.allclose(sent, ours, atol=1e-4)
        assert not torch.allclose(sent, merged, atol=1e-4)
    target.close()


def test_means_of_few_records_are_matched_once_the_noise_is_small(tmp_path):
    """Six samples of ten classes, so that hardly more than one stands behind a mean."""
    few = {"samples": 6, "clients": 4, "model": "cnn_small"}
    method = "feddpms(alpha=20,sigma=0.01,least=1,mechanism=single,width=8,spread=0)"
    trials = scores(trained(tmp_path, method, **few), Match())
    assert trials["all vectors", "top-1 match"].value > 0.9
    assert trials["one vector", "top-1 match"].floor == 0.5


def test_every_seed_of_an_attack_reads_payloads_that_were_computed_again_once(tmp_path, monkeypatch):
    """A round costs what training it cost; each seed draws the attacker's numbers alone anew."""
    few = {"samples": 6, "clients": 4, "model": "cnn_small", "rounds": 3}
    target = TargetRun(trained(tmp_path, "feddpms(alpha=20,least=1,mechanism=single,width=8)", **few))
    began, rounds = [], target.rounds
    monkeypatch.setattr(target, "rounds", lambda: began.append(1) or rounds())
    attempts = [Match().attempt(target, seed) for seed in (0, 1, 0)]
    target.close()
    assert len(began) == 1
    assert attempts[0].scores == attempts[2].scores
    assert attempts[0].scores[0].n > 0
