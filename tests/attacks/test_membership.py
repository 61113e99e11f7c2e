"""Membership: it finds out what was memorised, and nothing where nothing was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tests.attacks.runs import noise, trained
from unskew.attacks import shadows, success
from unskew.attacks.auxiliary_samples import like_those_of
from unskew.attacks.kinds.membership import Membership
from unskew.attacks.target_run import TargetRun


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """A run whose two clients have learnt 50 samples of noise by heart."""
    folder = tmp_path_factory.mktemp("noise")
    settings = {
        "clients": 2,
        "samples": 25,
        "rounds": 2,
        "epochs": 30,
        "lr": 0.3,
        "model": "mlp(hidden=[64])",
    }
    target = TargetRun(trained(folder, data=noise(folder, 400), **settings))
    yield target
    target.close()


def values(target: TargetRun, attack: Membership) -> dict[tuple[str, str], float]:
    return {(s.of, s.metric): s.value for s in attack.attempt(target, 0).scores}


def test_a_model_that_has_learnt_its_samples_by_heart_tells_them(memorised):
    scores = values(memorised, Membership(clients=1, shadows=0))
    assert scores["merged model, loss", "AUC"] > 0.9
    assert scores["merged model, loss", "TPR at 1.0% FPR"] > 0.3
    assert scores["update of client-0, loss", "AUC"] > 0.8


def test_a_model_that_never_saw_the_samples_tells_nothing(memorised):
    federation, first = memorised.run.federation, memorised.run.fed.net.weights()
    x, y = torch.as_tensor(np.asarray(federation.x)), torch.as_tensor(federation.y)
    own = shadows.confidences(memorised, [first], x, y)[0]
    two = len(own) // 2
    deviation = ((2 * two + 1) / (12 * two * two)) ** 0.5  # of the area where nothing tells them apart
    assert abs(success.auc(own[::2], own[1::2]) - 0.5) < 3 * deviation < 0.09


def test_a_client_whose_samples_look_otherwise_is_not_taken_for_one_who_betrays_them(tmp_path):
    """Strangers were all clients' test samples, turned otherwise than this client's: an update that had
    learnt nothing by heart told members with AUC 0.61 [0.54, 0.69]."""
    settings = {
        "clients": 4,
        "samples": 100,
        "rounds": 3,
        "lr": 0.1,
        "skew": "iid+rotate90",
        "model": "auto",
        "batch": 32,
    }
    target = TargetRun(trained(tmp_path, **settings))
    k, members = target.run.federation.clients - 1, target.run.federation.train[3]
    own = like_those_of(target.run.federation, k, target.trainer.samples.x[torch.as_tensor(members)], 0)
    scores = {
        s.of: s for s in Membership(clients=4, shadows=0).attempt(target, 0).scores if s.metric == "AUC"
    }
    target.close()
    test = torch.as_tensor(target.run.federation.x_test[target.run.federation.test[k]])
    assert own is not None
    assert {t.numpy().tobytes() for t in own.x} <= {t.numpy().tobytes() for t in test}
    assert len(scores) == 5
    assert max(s.value for s in scores.values()) < 0.56  # 0.62 with strangers of all clients


def test_shadows_start_from_what_the_attacked_client_was_sent(tmp_path):
    """FedAMP sends each client a mixture of its own, and there are more shadows than clients."""
    target = TargetRun(trained(tmp_path, "fedamp", lr=0.5))
    attack = Membership(clients=1, shadows=4)
    start = target.last_round.start
    assert start is not None
    (model,) = attack._updates(target)
    received, all_are_sent = start.received(model.client), start.weights
    assert any(not torch.equal(received[n], all_are_sent[n]) for n in received)
    assert all(torch.equal(model.start.weights[n], received[n]) for n in received)

    x = target.trainer.samples.x[:8]
    y = torch.as_tensor(target.run.federation.y[:8]).long()
    models = shadows.train_shadows(target, x, y, np.ones((4, 8), dtype=bool), model.start, (1, 0))
    for n in target.run.fed.net.trainable:
        assert not torch.equal(models[0][n], received[n])
        for other in models[1:]:  # one batch of the same samples
            torch.testing.assert_close(other[n], models[0][n])
    assert {of for of, _ in values(target, attack)} >= {f"{model.of}, lira", "merged model, lira"}
    target.close()


def test_the_ratio_is_that_of_two_normal_laws():
    inside = np.array([[True], [True], [False], [False]])
    told = np.array([[3.0], [5.0], [-1.0], [1.0]])
    ratio = shadows.ratios(np.array([2.5]), told, inside)[0]
    assert ratio == pytest.approx(norm.logpdf(2.5, 4, 1) - norm.logpdf(2.5, 0, 1), abs=1e-6)


def test_areas_and_rates_by_hand():
    members, others = np.array([3.0, 1.0]), np.array([2.0, 0.0])
    assert success.auc(members, others) == 0.75
    assert success.tpr_at(0.01, members, others) == 0.5  # no false positive is allowed
    assert success.tpr_at(0.5, members, others) == 1.0
    # a tie with a stranger would be a false positive
    assert success.tpr_at(0.01, np.array([2.0]), others) == 0.0


@pytest.mark.parametrize("rate", [0.01, 0.001])
def test_rates_of_a_score_that_says_nothing_are_those_of_chance(rate):
    """With 100 strangers 2.1 % of members passed at "1 %" and 1.0 % at "0.1 %", whose intervals held neither
    rate in a third and in half of the draws."""
    rng = np.random.default_rng(0)
    chance, values, held = success.chance_of_tpr(rate, 100), [], 0
    for _ in range(100):
        members, others = rng.normal(size=100), rng.normal(size=100)
        values.append(success.tpr_at(rate, members, others))
        low, high = success.interval_of_tpr(rate, members, others, rng)
        assert low <= values[-1] <= high
        held += low <= chance <= high
    assert np.mean(values) == pytest.approx(chance, abs=0.004)
    assert held >= 90
    assert success.chance_of_tpr(0.01, 200) == 3 / 201
    assert success.chance_of_tpr(0.001, 200) == 1 / 201


@pytest.mark.parametrize(("method", "kept"), [("fedper", "head.weight"), ("fedbn", "conv1.1")])
def test_models_of_which_clients_keep_a_part_are_refused(tmp_path, method, kept):
    """With FedPer the server's untrained head answered, and an area near 0.5 read as if nothing leaked."""
    model = "cnn_small(batch_norm=True)" if method == "fedbn" else "mlp(hidden=[16])"
    target = TargetRun(trained(tmp_path, method, model=model, rounds=1))
    refusal = Membership(clients=1, shadows=0).refuse(target)
    target.close()
    assert refusal is not None
    assert refusal.startswith("its clients keep '")
    assert kept in refusal.split("'")[1]
