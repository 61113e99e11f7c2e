"""The methods that change what a client optimises, against hand-worked numbers (Fixture A where they need
logits)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from tests.fixtures import COUNTS, G, Y, Z, assert_close, batch, client, onehot, out
from unskew.core.keys import key
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.replies import Reply, Ups
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.bsm import BSM
from unskew.methods.fedbr import project
from unskew.methods.fedcp import FedCP
from unskew.methods.feddecorr import correlation_penalty
from unskew.methods.feddyn import FedDyn
from unskew.methods.fedfa import FedFA, spread
from unskew.methods.fedlc import FedLC
from unskew.methods.fedntd import FedNTD, not_true
from unskew.methods.fedpcl import FedPCL
from unskew.methods.fedproto import FedProto
from unskew.methods.fedrs import FedRS
from unskew.methods.floco import Floco
from unskew.methods.moon import MOON, contrast
from unskew.methods.propfair import PropFair
from unskew.tasks.task import Classification

TASK = Classification()


def ce(part, **facts):
    """Cross-entropy of Fixture A after the Part's logits, per sample."""
    return TASK.loss(part.logits(Z, batch(), client(**facts)), onehot(Y))


def test_balanced_softmax_masks_what_the_client_lacks():
    z = Z.clone().requires_grad_()
    loss = TASK.loss(BSM().logits(z, batch(), client()), onehot(Y))
    assert_close(loss, [0.0717, 0.7437])
    assert_close(loss.mean(), 0.4077)
    (g,) = torch.autograd.grad(loss.mean(), z)
    assert_close(g, [[-0.0346, 0.0346, 0], [0.2623, -0.2623, 0]])
    assert_close(ce(BSM(), counts=torch.full((3,), 7.0), n=torch.tensor(21.0)), TASK.loss(Z, onehot(Y)), 6)
    assert_close(ce(BSM(), counts=torch.tensor([5.0, 0, 0]), n=torch.tensor(5.0))[0], 0.0, 7)


def test_fedlc_shifts_by_the_fourth_root_of_the_counts():
    assert_close(ce(FedLC(tau=1.0)), [0.1781, 0.3514])
    assert_close(ce(FedLC(tau=1.0)).mean(), 0.2648)
    assert_close(ce(FedLC(tau=0.5)).mean(), 0.2607)
    assert_close(ce(FedLC(tau=0.1)).mean(), 0.2579)
    z = Z.clone().requires_grad_()
    (g,) = torch.autograd.grad(TASK.loss(FedLC().logits(z, batch(), client()), onehot(Y)).sum(), z)
    assert g[:, 2].tolist() == [0, 0]
    present = torch.tensor([3.0, 2, 1])
    assert_close(ce(FedLC(tau=0.0), counts=present), TASK.loss(Z, onehot(Y)), 7)


@pytest.mark.parametrize(
    ("baseline", "huber", "expected"), [(2.0, True, -0.4313), (0.6, True, 1.7399), (0.6, False, 1.2788)]
)
def test_propfair_takes_the_logarithm_of_a_utility(baseline, huber, expected):
    """A loss of 0.4608: utilities 1.5392 and 0.1392, the second below eps = 0.3."""
    part, plain = PropFair(baseline=baseline, eps=0.3, huber=huber), TASK.loss(Z, onehot(Y)).mean()
    assert_close(plain, 0.4608)
    assert_close(plain + part.loss({}, out(Z), batch(), client()), expected)


def test_fedrs_leaves_masked_classes_masked():
    """M10: -inf times alpha = 0 was NaN."""
    z = torch.tensor([[1.0, 2.0, -math.inf]], requires_grad=True)
    scaled = FedRS(alpha=0.0).logits(z, batch(), client())
    assert scaled.tolist() == [[1.0, 2.0, -math.inf]]
    scaled.logsumexp(1).sum().backward()
    assert torch.isfinite(z.grad).all()


def test_fedrs_scales_the_logits_of_missing_classes():
    assert_close(ce(FedRS(alpha=0.5)), [0.2664, 0.6099])
    assert_close(ce(FedRS(alpha=0.5)).mean(), 0.4381)
    assert_close(ce(FedRS(alpha=0.5, soft=True)).mean(), 0.5079)
    assert_close(ce(FedRS(alpha=1.0)), TASK.loss(Z, onehot(Y)), 7)


def test_fedntd_distils_the_classes_that_are_not_true():
    assert_close(not_true(Z, G, onehot(Y), 1.0), [0.0226, 0.0902])
    assert_close(not_true(Z, G, onehot(Y), 3.0), [0.0301, 0.1202])

    def run(w, x):
        return G

    assert_close(FedNTD().loss({}, out(Z), batch(), client(run=run, start={})), 0.0564)
    assert_close(FedNTD(tau=3.0).loss({}, out(Z), batch(), client(run=run, start={})), 0.0752)
    two = not_true(Z[:, :2], G[:, :2], onehot(Y, 2), 1.0)
    assert two.tolist() == [0, 0]
    z = Z.clone().requires_grad_()
    (g,) = torch.autograd.grad(not_true(z, G, onehot(Y), 1.0).sum(), z)
    assert torch.isfinite(g).all()
    assert g[0, 0] == g[1, 1] == 0


def test_moon_contrasts_the_global_view_with_the_last_own():
    r, near, far = (torch.tensor(v) for v in ([[1.0, 0], [0, 2]], [[1.0, 1], [1, 1]], [[0.0, 1], [0, 1]]))
    assert_close(contrast(r, near, far, 0.5), [0.2176, 1.0283])
    assert_close(contrast(r, near, far, 0.5).mean(), 0.6230)
    assert_close(contrast(r, near, near, 0.5), [0.6931, 0.6931])

    def features(w, x):
        return far if w else near  # of the last own weights and of the received ones

    first = client(start={}, mine={"last": {"a": 1}, "known": torch.tensor(0.0)}, features=features)
    assert MOON().loss({}, out(r), batch(torch.zeros(2, 1)), first) == 0
    later = client(start={}, mine={"last": {"a": 1}, "known": torch.tensor(1.0)}, features=features)
    assert_close(MOON(mu=5.0).loss({}, out(r), batch(torch.zeros(2, 1)), later), 5 * 0.6230, 3)


def test_fedproto_pulls_features_to_the_prototypes_there_are():
    h = torch.tensor([[1.0, 0], [0, 2]])
    down = {"prototypes": torch.zeros(2, 2), "known": torch.tensor([1.0, 0])}
    assert_close(FedProto().loss({}, out(h), batch(y=onehot(Y, 2)), client(down=down)), 0.25)
    sums = [torch.tensor([[30.0, 0]]), torch.tensor([[30.0, 40]])]
    replies = [
        Reply(k, n, {}, {"fedproto": {"sums": s, "counts": torch.tensor([n])}})
        for k, (n, s) in enumerate(zip((30.0, 10.0), sums))
    ]
    found = FedProto().server({}, Ups.of(replies).seen_by("fedproto"), None)
    assert_close(found["prototypes"], [[1.5, 1.0]])


def test_fedproto_without_weights_answers_by_the_nearest_prototype():
    down = {"prototypes": torch.tensor([[0.0, 0], [4, 0], [9, 9]]), "known": torch.tensor([1.0, 1, 0])}
    h = torch.tensor([[1.0, 0], [3, 0], [9, 9]])
    part = FedProto(aggregate_weights=False)
    assert part.scores(torch.zeros(3, 3), h, client(down=down)).argmax(1).tolist() == [0, 1, 1]
    z = torch.ones(3, 3)
    assert FedProto().scores(z, h, client(down=down)) is z


@pytest.mark.parametrize(("form", "expected"), [("code", 0.6923), ("paper", 0.7596)])
def test_feddecorr_in_both_forms(form, expected):
    H = torch.tensor([[1.0, 2], [2, 1], [3, 5]])
    assert_close(correlation_penalty(H, torch.ones(3), form), expected)
    padded = torch.cat([H, torch.tensor([[9.0, -9]])])
    assert_close(correlation_penalty(padded, torch.tensor([1.0, 1, 1, 0]), form), expected)
    assert correlation_penalty(H[:1], torch.ones(1), form) == 0


@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_feddecorr_is_a_mean_square_of_correlations_whichever_is_more(shape):
    H, (n, D) = torch.randn(shape, generator=torch.Generator().manual_seed(0)), shape
    squares = torch.corrcoef(H.T).pow(2)
    assert_close(correlation_penalty(H, torch.ones(n), "paper"), float(squares.mean()))
    others = (float(squares.sum()) - D) / (D * (D - 1))
    assert_close(correlation_penalty(H, torch.ones(n), "code"), (n - 1) ** 2 / n * others)


def test_fedfa_spreads_channels_by_how_clients_differ_in_them():
    means = torch.tensor([[1.0, 2], [1.4, 1], [0.6, 3]])
    replies = [Reply(k, 1.0, {}, {"fedfa": {"m": {"a": m}, "s": {"a": m}}}) for k, m in enumerate(means)]
    ups, s = Ups.of(replies).seen_by("fedfa"), {"m": {"a": torch.ones(2)}, "s": {"a": torch.ones(2)}}
    S = FedFA().server(s, ups, None)["m"]["a"]
    assert_close(S, [0.1067, 0.6667])
    batch_means = torch.tensor([[1.0, 2], [3, 2.5]])
    assert_close(spread(batch_means, torch.ones(2), S), [2.7767, 0.3265])
    assert_close(spread(batch_means, torch.ones(2), torch.ones(2)), [4.0, 0.25])
    assert spread(batch_means[:1], torch.ones(1), S).tolist() == [0, 0]
    official = FedFA(variant="official").server(s, ups, None)["m"]["a"]
    assert official.tolist() == [official[0]] * 2


def test_fedfa_leaves_features_alone_when_the_coin_says_so():
    h, zero = torch.randn(3, 2, 4, 4, generator=key("fedfa")), torch.zeros(3, 2)
    down = {w: {"a": torch.ones(2)} for w in ("m", "s")}
    b = batch(torch.zeros(3, 1), onehot([0, 1, 2]))
    coin = {"m/a": zero + 1, "s/a": zero + 1, "p/a": torch.tensor(0.9)}
    found, _ = FedFA(p=0.5).tap("a", h, b, client(down=down, noise=coin))
    assert torch.equal(found, h)
    still = {"m/a": zero, "s/a": zero, "p/a": torch.tensor(0.1)}
    found, _ = FedFA(p=0.5).tap("a", h, b, client(down=down, noise=still))
    assert_close(found, h, 5)
    moved = FedFA(p=0.5).tap("a", h, b, client(down=down, noise={**still, "m/a": zero + 1}))[0]
    assert (moved - h).abs().mean() > 0.1


def test_feddyn_bends_the_loss_and_corrects_the_mean():
    part, start = FedDyn(alpha=0.1), {"w": torch.tensor([1.0, 0])}
    w = {"w": torch.tensor([1.4, -0.2])}
    c = client(start=start, mine={"g": {"w": torch.tensor([0.05, 0.02])}})
    assert_close(part.loss(w, None, None, c), -0.0560)
    assert_close(part.finish(w, c)[1]["g"]["w"], [0.01, 0.04])
    ups = Ups.of([Reply(0, 9.0, w)], weighting="equal")
    merged, s = part.merge(start, {"h": {"w": torch.zeros(2)}}, ups, SimpleNamespace(clients=4))
    assert_close(s["h"]["w"], [-0.01, 0.005])
    assert_close(merged["w"], [1.5, -0.25])


def test_fedbr_contrast_and_uniform_target():
    e1, e2, e3 = (torch.tensor(v) for v in ([[1.0, 0], [1, 1]], [[1.0, 1], [1, 0]], [[0.0, 1], [-1, 1]]))
    assert_close(contrast(e1, e2, e3, 1 / 2.0), [0.2176, 0.2176])
    assert_close(-Z.log_softmax(-1).mean(), 1.4608)
    P = {
        "weight0": torch.tensor([[1.0], [-1.0]]),
        "bias0": torch.zeros(2),
        "weight1": torch.ones(1, 2),
        "bias1": torch.ones(1),
    }
    assert project(P, torch.tensor([[2.0], [-3.0]])).flatten().tolist() == [3, 4]


@pytest.mark.parametrize("text", ["bsm+flea", "fedlc+fedmix", "bsm+rebafl", "bsm+feddata", "fedgen+local"])
def test_masks_do_not_meet_labels_from_elsewhere(text):
    with pytest.raises(UsageError, match="cannot be combined"):
        registry.parse(text)


BY_COUNTS = ["bsm", "fedetf", "fedlc", "fedrod", "fedvls", "rebafl", "unskew"]


@pytest.mark.parametrize("pair", list(itertools.combinations(BY_COUNTS, 2)), ids="+".join)
def test_logits_are_corrected_by_class_counts_once(pair):
    with pytest.raises(UsageError, match=r"E107 .* (cannot be combined|each make a client.s own model)"):
        registry.parse("+".join(pair))


@pytest.mark.parametrize(
    "text",
    [
        "flea+fedntd",
        "flea+moon",
        "flea+fedgen",
        "flea+feddpms",
        "flea+fedmix",
        "flea+fedkd",
        "flea+fml",
        "flea+fedphp",
        "flea+fedcp",
    ],
)
def test_a_teacher_that_would_not_see_the_mixture_is_refused(text):
    """M11: the student saw FLea's mixture and the teacher the sample alone, 31 % apart."""
    with pytest.raises(UsageError, match=r"E107 .* cannot be combined: .* FLea's mixture"):
        registry.parse(text)


@pytest.mark.parametrize("masks", ["bsm", "fedlc", "fedetf", "fedrod", "fedvls", "rebafl(eps=0)"])
def test_fedrs_beside_a_mask_of_the_classes_that_it_would_scale_is_refused(masks):
    """The pair trained to the bits of the mask alone, under a name of its own."""
    for text in (f"{masks}+fedrs", f"fedrs(alpha=0)+{masks}"):
        with pytest.raises(
            UsageError, match=r"E107 .* cannot be combined: .* masks the classes a client lacks"
        ):
            registry.parse(text)


@dataclass(frozen=True)
class Doubling(Part):
    name: ClassVar[str] = "doubling"

    def logits(self, z, b, c):
        return 2 * z


@pytest.mark.parametrize("own", [FedCP(), FedPCL(), Floco()], ids=lambda part: part.name)
def test_logits_that_a_loss_of_its_own_would_not_see_are_not_changed(own):
    """FedLC beside FedCP trained to the bits of FedCP alone."""
    for other in (Doubling(), FedLC()):
        with pytest.raises(UsageError, match=r"E107 .* its loss is of logits that it makes itself"):
            Method(own, other)


@pytest.mark.parametrize("mixing", ["flea", "fedmix", "naivemix", "feddata", "feddpms"])
def test_a_prior_of_the_clients_own_labels_does_not_meet_mixtures(mixing):
    """M12: half of every mixed label is the buffer's, and the loss was corrected by the client's own
    labels."""
    for prior in ("rebafl(mu=0)", "rebafl", "rebafl(eps=1, form=additive)", "fedrs", "bsm", "fedlc"):
        with pytest.raises(UsageError, match=r"E107 .* cannot be combined: .* the other brings"):
            registry.parse(f"{mixing}+{prior}")
    assert registry.parse(f"{mixing}+faug")  # its prior is uniform whatever a client holds


def test_counts_fixture_is_the_cards():
    assert COUNTS.tolist() == [30, 10, 0]
