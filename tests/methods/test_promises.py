"""What a user's own Part reads, promises and combines with: each mistake ends in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import unskew
from unskew.core import Part, Share
from unskew.core.method import Method
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.runs import conformance
from unskew.runs.resolve import resolve


@dataclass(frozen=True)
class ByLoss(Part):
    """Weighs clients by their losses, and says that sums do for it."""

    name = "byloss"
    merges = True

    def merge(self, w, s, ups, fed):
        p = torch.softmax(torch.tensor([float(r.loss) for r in ups.replies]), 0)
        return {n: torch.einsum("k,k...->...", p.to(w[n].dtype), ups.stack(n)) for n in w}, s


@dataclass(frozen=True)
class Proved(Part):
    """Calls what it shares differentially private."""

    name = "proved"

    def shares(self, fed):
        return {"n": Share((), kind="statistics", samples="client", guarantee="dp")}

    def finish(self, w, c):
        return {"n": c.n.float()}, {}


class Accounted(Proved):
    name = "accounted"

    def account(self, counts_KC, fed):
        return None


@dataclass(frozen=True)
class Flat(Part):
    name = "flat"

    def logits(self, z, b, c):
        return z.argmax(-1, keepdim=True).float().expand_as(z)


@pytest.mark.parametrize(
    ("beside", "changes", "why"),
    [
        ("", {"secure_aggregation": "on"}, "with secure aggregation only the sum of all losses is there"),
        ("dp", {"availability": "poisson:0.5"}, "no noise of 'dp' covers a loss"),
        ("dpsgd", {}, "no noise of 'dpsgd' covers a loss"),
    ],
)
def test_a_loss_that_is_not_there_or_that_nothing_covers_is_not_read(beside, changes, why):
    """A merge by losses saw one mean, or 0; beside `dpsgd` it read what no epsilon counts."""
    method = Method(ByLoss(), *(registry.parse(beside).parts if beside else ()))
    with pytest.raises(UsageError, match=f"E108 a hook reads the loss of single clients, and {why}"):
        conformance.train_run(method, rounds=2, **changes)


def test_what_is_called_proved_has_an_account():
    with pytest.raises(UsageError, match="E108 'proved' cannot run here: it declares 'n' as guarantee='dp'"):
        resolve(conformance.short_settings(), conformance.small_federation(), Method(Proved()))
    resolve(conformance.short_settings(), conformance.small_federation(), Method(Accounted()))


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_a_loss_that_no_weight_decides_is_told(lanes):
    """It was an unexpected error with a traceback."""
    with pytest.raises(UsageError, match="E127 no gradient of the loss reaches a weight"):
        conformance.train_run(Method(Flat()), lanes=lanes, rounds=1)


def test_a_hook_that_fails_in_a_combination_is_no_refusal():
    """`unskew check` took it for one, and the check had passed."""
    (combined,) = conformance.check_method(ByLoss(), [conformance.combines_with_other_methods])
    assert not combined.ok
    assert combined.detail.startswith("with fedbn, the hook `merge` of 'byloss' failed")


@pytest.mark.parametrize("method", ["fedper", "fedrep", "fedper+fedrdn"])
def test_a_division_that_leaves_nothing_to_share_is_refused(method):
    """FedPer of a model that is all head was local training to the bit, and led the tables as FedPer."""
    alone = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    settings = {"model": alone, "rounds": 1, "epochs": 1, "clients": 3, "workers": 1}
    with pytest.raises(UsageError, match=r"E108 'fed.*' cannot run here: clients would keep every weight"):
        unskew.run(method, "digits", **settings)
    for shares in ("gpfl", "local", "fedproto(aggregate_weights=False)"):
        assert unskew.run(shares, "digits", **settings).t == 1
