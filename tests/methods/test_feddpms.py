"""FedDPMS and its accounting against the card's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.fixtures import assert_close
from unskew import data
from unskew.core.method import Method
from unskew.engine import check, resolve
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.feddpms import FedDPMS, divergence, match
from unskew.privacy.accounting import Latents, composed, delta_of, epsilon_by_renyi, epsilon_of


def test_divergence_from_the_standard_normal():
    mu, log_var = torch.tensor([[0.2, 0.8], [0.5, 0.5]]), torch.tensor([[0.0, -1], [-0.5, 0.5]])
    assert_close(divergence(mu, log_var).mean(), 0.4508)
    assert_close(divergence(mu, log_var).mean() / 2, 0.2254)
    x, drawn = torch.tensor([[0.0, 1], [0.5, 0.5]]), torch.tensor([[0.1, 0.8], [0.5, 0.9]])
    assert_close((x - drawn).pow(2).mean(), 0.0525)


def test_matching_by_what_is_lacked():
    lacks, classes = torch.zeros(3, 10), torch.zeros(3, 10)
    lacks[0, [7, 8, 9]] = 1
    classes[1, [7, 1, 2]] = 1
    classes[2, [8, 9, 0]] = 1
    assert match(0, lacks, classes) == 2
    classes[1, 8] = 1
    assert match(0, lacks, classes) == 1  # a tie goes to the lowest id
    assert match(1, lacks, classes) == -1
    classes[0, [7, 8, 9]] = 1
    assert match(0, lacks, classes) == 1  # never oneself


@pytest.mark.parametrize(("mu", "expected"), [(1.0, 4.377), (2.0, 9.997)])
def test_exact_epsilon_of_the_gaussian_mechanism(mu, expected):
    assert epsilon_of(mu, 1e-5) == pytest.approx(expected, abs=6e-4)
    assert delta_of(epsilon_of(mu, 1e-5), mu) == pytest.approx(1e-5, rel=1e-6)
    assert epsilon_by_renyi(mu, 1e-5) > epsilon_of(mu, 1e-5)


TABLE = [  # width, sigma, copies, classes, m, delta: as published, one vector, added, replaced, at worst
    (32, 4.0, 200, 3, 100, 1e-5, 0.0121, 0.040, 0.726, 1.061, 1.326),
    (32, 4.0, 200, 3, 100, 1e-2, 0.0078, 0.000, 0.263, 0.427, 0.562),
    (32, 4.0, 200, 3, 40, 1e-5, 0.0303, 0.110, 1.993, 2.943, 3.709),
    (128, 2.0, 200, 3, 100, 1e-5, 0.0242, 0.183, 3.387, 5.053, 6.415),
    (128, 2.0, 200, 3, 100, 1e-2, 0.0155, 0.033, 1.719, 2.737, 3.605),
    (128, 2.0, 200, 3, 500, 1e-5, 0.0048, 0.031, 0.569, 0.830, 1.037),
    (128, 2.0, 200, 3, 10, 1e-5, 0.2422, 2.288, 65.32, 111.4, 154.2),
    (128, 4.0, 50, 10, 40, 1e-5, 0.0303, 0.234, 1.993, 2.943, 7.511),
    (128, 4.0, 50, 10, 100, 1e-5, 0.0121, 0.086, 0.726, 1.061, 2.594),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_cards_table_of_epsilons(row):
    width, sigma, copies, classes, m, delta, paper, one, added, replaced, worst = row
    of = Latents(m, width, sigma, copies, classes)
    assert of.paper(delta) == pytest.approx(paper, abs=6e-5)
    assert epsilon_of(of.mu, delta) == pytest.approx(one, abs=6e-4)
    for found, wanted in ((of.added(delta), added), (of.replaced(delta), replaced), (of.worst(delta), worst)):
        assert found == pytest.approx(wanted, rel=6e-4, abs=6e-4)


def test_renyi_is_a_looser_check():
    for of, expected in ((Latents(100, 128, 2.0, 200, 3), 3.666), (Latents(100, 32, 4.0, 200, 3), 0.794)):
        assert epsilon_by_renyi(composed(of.mu, of.copies), 1e-5) == pytest.approx(expected, abs=2e-3)


def test_copies_are_one_release_with_less_noise_and_more_samples_protect():
    many, one = Latents(50, 32, 4.0, 200, 3), Latents(50, 32, 4.0 / math.sqrt(200), 1, 3)
    assert many.added(1e-5) == pytest.approx(one.added(1e-5), rel=1e-9)
    by_m = [Latents(m, 32, 4.0, 200, 3).added(1e-5) for m in (10, 40, 100, 400)]
    assert by_m == sorted(by_m, reverse=True)
    by_sigma = [Latents(50, 32, s, 200, 3).added(1e-5) for s in (1.0, 2.0, 4.0)]
    assert by_sigma == sorted(by_sigma, reverse=True)
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(0.001, 0.5) == 0


def test_an_independent_accountant_agrees():
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution", reason="dp-accounting is not installed")
    of = Latents(100, 128, 2.0, 200, 3)
    theirs = pld.from_gaussian_mechanism(1 / composed(of.mu, of.copies)).get_epsilon_for_delta(1e-5)
    assert of.added(1e-5) == pytest.approx(theirs, rel=1e-3)


def run(mechanism, rounds=5):
    part = FedDPMS(alpha=10, width=8, lam=1.0, mechanism=mechanism, sigma=0.5)
    settings = check.settings(data="digits", clients=4, rounds=rounds, samples=60, skew="classes:3", lr=0.1)
    method = Method(part)
    federation = resolve.federation_of(settings, data.load("digits"), method)
    made = resolve.loop_of(settings, method, federation)
    try:
        states = [made.begin()]
        for t in range(1, rounds + 1):
            states.append(made.round(states[-1], t)[0])
        return part, made, states, federation
    finally:
        made.trainer.close()


@pytest.mark.parametrize("mechanism", ["paper", "single"])
def test_each_client_shares_once_after_the_first_stage_and_is_matched(mechanism):
    _, made, states, federation = run(mechanism)
    before, after = states[1].slices["feddpms"], states[2].slices["feddpms"]  # T_p = 2 of 5
    assert not before["count"].any()
    assert not before["decoder"]["dec_w"].any()
    assert after["decoder"]["dec_w"].any()
    assert torch.equal(states[5].slices["feddpms"]["z"], states[3].slices["feddpms"]["z"])
    lacks = after["lacks"]
    for k in range(4):
        least = np.argsort(federation.label_counts[k], kind="stable")[:3]
        assert set(np.flatnonzero(lacks[k].numpy())) == set(least)
        if after["match"][k] >= 0:
            assert after["match"][k] != k
    sent = [r for r in made.record.rows["ledger"] if r["share"] == "feddpms/z" and r["way"] == "up"]
    assert {r["t"] for r in sent} <= {2, 3, 4}
    most = 10 if mechanism == "paper" else 1
    assert max(np.max(r["bytes"]) for r in sent) <= 3 * most * 8 * 4
    assert {r["guarantee"] for r in sent} == {"none" if mechanism == "paper" else "dp"}


def test_decoders_stay_with_their_clients():
    _, made, _, _ = run("paper", rounds=3)
    assert not any(".dec_" in n for n in made.trainer.sent)
    assert "feddpms.var_w" in made.trainer.sent


def test_the_account_tells_the_honest_figure_and_that_nothing_is_guaranteed():
    found = FedDPMS(width=128, sigma=2.0).account(np.array([[300, 200, 100, 50]]), None)
    assert "m = 100" in found.release
    (published, _), (added, reading), _, _, (end_to_end, _) = found.epsilons
    assert published == pytest.approx(0.02422, abs=1e-5)
    assert added == pytest.approx(3.387, abs=1e-3)
    assert "not guaranteed" in reading
    assert math.isinf(end_to_end)
    assert "given the encoder" in FedDPMS(mechanism="single").account(np.array([[9, 9]]), None).epsilons[1][1]


def test_the_account_lists_every_client_and_class_that_is_shared():
    found = FedDPMS(width=128, sigma=2.0, top=2).account(np.array([[300, 1, 100], [0, 50, 1]]), None)
    assert [row[:3] for row in found.each] == [(0, 0, 300), (0, 2, 100), (1, 1, 50)]
    assert "m = 50," in found.release
    assert found.each[2][4] == found.epsilons[1][0] > found.each[1][4] > found.each[0][4]


def test_the_account_where_nothing_can_be_shared():
    assert FedDPMS().account(np.array([[1, 1]]), None).lines() == ["no client has a class large enough to share"]


@pytest.mark.parametrize("text", ["feddpms+fedrdn", "feddpms+bsm", "feddpms(mechanism=magic)", "feddpms(stage=1.5)"])
def test_what_cannot_be(text):
    with pytest.raises(UsageError):
        registry.parse(text)
