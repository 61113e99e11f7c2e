"""FedDPMS and its accounting against the card's numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid

from tests.fixtures import assert_close, client
from unskew import data
from unskew.core.method import Method
from unskew.core.random_keys import key
from unskew.methods import feddpms
from unskew.methods.feddpms import FedDPMS, match_client
from unskew.privacy.accounting import (
    LatentRelease,
    gaussian_delta,
    gaussian_epsilon,
)
from unskew.records import client_lists
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve


def test_matching_by_what_is_lacked():
    lacks, classes = torch.zeros(3, 10), torch.zeros(3, 10)
    lacks[0, [7, 8, 9]] = 1
    classes[1, [7, 1, 2]] = 1
    classes[2, [8, 9, 0]] = 1
    assert match_client(0, lacks, classes) == 2
    classes[1, 8] = 1
    assert match_client(0, lacks, classes) == 1  # a tie goes to the lowest id
    assert match_client(1, lacks, classes) == -1
    classes[0, [7, 8, 9]] = 1
    assert match_client(0, lacks, classes) == 1  # never oneself


def releasing(part: FedDPMS, counts: list[float]):
    """A client with these samples per class, whose latents all lie at 0.5."""
    counts_C = torch.tensor(counts)
    fed = SimpleNamespace(classes=len(counts), seed=3, shape=(1, 8, 8))
    sums = counts_C[:, None] * torch.full((len(counts), part.width), 0.5)
    return client(
        fed=fed, id=0, counts=counts_C, down={"asked": torch.zeros(1)}, class_sums=lambda w: (sums, counts_C)
    )


def test_single_releases_one_vector_a_class_with_the_noise_that_all_copies_amount_to():
    """sigma / sqrt(alpha) = 2 / 10."""
    part = FedDPMS(width=20_000, sigma=2.0, alpha=100, top=2, mechanism="single")
    sent = part.release({}, releasing(part, [9.0, 1.0, 4.0, 7.0]))
    assert sent["labels"].tolist() == [0, 3]
    assert sent["classes"].tolist() == [1, 0, 0, 1]
    assert sent["lacks"].tolist() == [0, 1, 1, 0]
    assert sent["z"].shape == (2, 20_000)
    assert_close(sent["z"].mean(1), [0.5, 0.5], 2)
    assert_close(sent["z"].std(1), [0.2, 0.2], 2)


def test_a_client_releases_once_and_only_classes_of_enough_samples():
    part = FedDPMS(width=4, top=3, least=5, mechanism="single")
    assert part.release({}, releasing(part, [9.0, 4.0, 5.0]))["labels"].tolist() == [0, 2]
    again = releasing(part, [9.0, 4.0, 5.0])
    again.down["asked"][0] = 1
    assert len(part.release({}, again)["z"]) == 0


def test_the_filter_passes_what_is_taken_for_the_class_and_gives_up_in_the_end():
    passed = feddpms.filter_copies(torch.zeros(3), 1, 1.0, 50, lambda z: (z[:, 0] > 0).long(), key("filter"))
    assert passed.shape == (50, 3)
    assert (passed[:, 0] > 0).all()
    assert 0.7 < passed[:, 1].std() < 1.3
    tried = []
    nothing = feddpms.filter_copies(
        torch.zeros(3), 1, 1.0, 5, lambda z: tried.append(z) or torch.zeros(5), key("none")
    )
    assert (len(nothing), len(tried)) == (0, feddpms.ATTEMPTS)


TABLE = [  # width, sigma, copies, classes, m, delta: as published, one vector, added, replaced, at worst
    (32, 4.0, 200, 3, 100, 1e-5, 0.0121, 0.040, 0.726, 1.061, 1.326),
    (32, 4.0, 200, 3, 40, 1e-5, 0.0303, 0.110, 1.993, 2.943, 3.709),
    (128, 2.0, 200, 3, 100, 1e-5, 0.0242, 0.183, 3.387, 5.053, 6.415),
    (128, 2.0, 200, 3, 10, 1e-5, 0.2422, 2.288, 65.32, 111.4, 154.2),
    (128, 4.0, 50, 10, 40, 1e-5, 0.0303, 0.234, 1.993, 2.943, 7.511),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_cards_table_of_epsilons(row):
    width, sigma, copies, classes, m, delta, paper, one, added, replaced, worst = row
    release = LatentRelease(width, sigma, copies, classes)
    assert release.paper(m, delta) == pytest.approx(paper, abs=6e-5)
    assert gaussian_epsilon(release.mu(m), delta) == pytest.approx(one, abs=6e-4)
    for means, wanted in ((1, added), (2, replaced), (max(2, classes), worst)):
        assert release.composed(m, delta, means) == pytest.approx(wanted, rel=6e-4, abs=6e-4)


def test_delta_is_the_integral_that_defines_it():
    """The hockey-stick divergence of N(mu, 1) from N(0, 1): the integral of max(0, p - e^eps q)."""
    for mu, epsilon in (
        (0.5, 0.3),
        (1.0, 2.0),
        (LatentRelease(128, 2.0, 200, 3).mu(100) * math.sqrt(200), 3.387),
    ):
        x = np.linspace(-12, 12 + mu, 400_001)
        p, q = (np.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi) for centre in (mu, 0.0))
        integral = trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x)
        assert gaussian_delta(epsilon, mu) == pytest.approx(integral, rel=1e-6, abs=1e-12)


def run(mechanism, rounds=5):
    part = FedDPMS(alpha=10, width=8, lam=1.0, mechanism=mechanism, sigma=0.5)
    settings = conformance.short_settings(
        data="digits", clients=4, rounds=rounds, samples=60, skew="classes:3", lr=0.1
    )
    method = Method(part)
    made = loop_of(resolve(settings, data.read("digits"), method))
    states = [made.begin()]
    for t in range(1, rounds + 1):
        states.append(made.round(states[-1], t)[0])
    return part, made, states, made.run.federation


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


def test_a_client_trains_on_synthetic_images_in_its_first_round_of_stage_two():
    """With a fifth of the clients in a round, many train in stage II before they have shared anything."""
    part = FedDPMS(width=8, alpha=5, sigma=0.3, mechanism="single")
    changes = {
        "data": "digits",
        "clients": 20,
        "samples": 30,
        "skew": "dirichlet:0.3",
        "availability": "sample:0.2",
        "rounds": 7,
    }
    made = loop_of(resolve(conformance.short_settings(**changes), data.read("digits"), Method(part)))
    state = made.begin()
    for t in range(1, 8):
        matched, state = state.slices["feddpms"]["match"], made.round(state, t)[0]
        trained = next(
            r["answered"] for r in made.record.rows["events"] if r["code"] == "round" and r["t"] == t
        )
        if t > part.last_of_stage(7):
            assert (matched[client_lists.clients_in(trained)] >= 0).all()


def test_the_account_tells_the_honest_figure_and_that_nothing_is_guaranteed():
    found = FedDPMS(width=128, sigma=2.0).account(np.array([[300, 200, 100, 50]]), None)
    assert "m = 100" in found.release
    (published, _), (added, reading), _, _, (end_to_end, _) = found.epsilons
    assert published == pytest.approx(0.02422, abs=1e-5)
    assert added == pytest.approx(3.387, abs=1e-3)
    assert "not guaranteed" in reading
    assert math.isinf(end_to_end)


@pytest.mark.parametrize("top", [1, 2, 3])
def test_at_worst_is_no_better_than_any_other_reading(top):
    """With top=1 "at worst" (0.219) lay below "replaced" (0.3195)."""
    _, added, replaced, worst, _ = (
        e for e, _ in FedDPMS(mechanism="single", top=top).account(np.array([[99, 99]]), None).epsilons
    )
    assert added < replaced <= worst


def test_the_account_lists_every_client_and_class_that_is_shared():
    found = FedDPMS(width=128, sigma=2.0, top=2).account(np.array([[300, 1, 100], [0, 50, 1]]), None)
    assert [row[:3] for row in found.each] == [(0, 0, 300), (0, 2, 100), (1, 1, 50)]
    assert "m = 50," in found.release
    assert found.each[2][4] == found.epsilons[1][0] > found.each[1][4] > found.each[0][4]
