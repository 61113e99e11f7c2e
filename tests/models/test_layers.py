"""What users' models are made of: served as torch would, or refused before anything trains."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unskew
from tests.runs.test_trial import CLASSES, data
from tests.runs.test_trial import resolved as given
from unskew.errors import UsageError

LANES = pytest.mark.parametrize("lanes", ["1", "16"])


def trained(module: nn.Module, method: str = "fedavg", **options) -> unskew.Result:
    settings = {"rounds": 2, "clients": 3, "epochs": 1, "batch": 8, "normalise": "none"}
    settings |= {"device": "cpu", "workers": 1}
    return unskew.run(method, data(), model=module, **(settings | options))


def with_norm(norm: nn.Module, flat: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    if flat:
        return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(36, 8), norm), nn.Linear(8, CLASSES))
    return nn.Sequential(nn.Sequential(nn.Conv2d(1, 8, 3), norm, nn.Flatten()), nn.Linear(128, CLASSES))


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (nn.BatchNorm2d(8, track_running_stats=False), "'0.1' keeps no running statistics"),
        (nn.BatchNorm2d(8, momentum=None), r"'0.1' averages over all batches it has seen \(momentum=None\)"),
        (nn.InstanceNorm2d(8, track_running_stats=True), "'0.1' is instance normalisation"),
        (nn.SyncBatchNorm(8), "'0.1' is nn.SyncBatchNorm"),
    ],
)
def test_normalisation_that_nobody_can_average_is_refused(norm, words):
    """The first was a traceback, the second left its statistics at 0 and 1 without a word."""
    with pytest.raises(UsageError, match=f"E123.*{words}"):
        given(with_norm(norm))


@LANES
@pytest.mark.parametrize(
    ("norm", "flat"),
    [
        (lambda: nn.BatchNorm2d(8, momentum=0.5, eps=0.1), False),
        (lambda: nn.BatchNorm1d(8, affine=False), True),
        (lambda: nn.LazyBatchNorm1d(), True),
        (lambda: nn.InstanceNorm2d(8, affine=True), False),
    ],
)
def test_normalisation_trains_as_in_torch(lanes, norm, flat):
    """One client, whole batches, against torch.optim; where rows fill a batch and where they do not."""
    module = with_norm(norm(), flat)
    result = trained(module, clients=1, batch=37, lanes=lanes, rounds=1, lr=0.05)
    plain = copy.deepcopy(module).double().train()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
    rows = result.federation.train[0]
    order = rows[torch.randperm(len(rows), generator=unskew.core.key(0, 1, 0, "batch")).numpy()]
    for batch in (order[:37], order[37:]):
        optimiser.zero_grad()
        x, y = (torch.as_tensor(v[batch]) for v in (result.federation.x, result.federation.y))
        F.cross_entropy(plain(x.double()), y).backward()
        optimiser.step()
    for name, t in plain.state_dict().items():
        if t.is_floating_point():
            torch.testing.assert_close(
                result.model.state_dict()[name].double(), t, rtol=0, atol=1e-5, msg=name
            )


def test_a_batch_of_one_sample_needs_more_than_one_value_a_channel():
    """BatchNorm1d with batch=1 crashed in the first step."""
    with pytest.raises(UsageError, match="E109 batch=1 leaves batch normalisation a single value per"):
        given(with_norm(nn.BatchNorm1d(8), flat=True), batch=1)
    assert given(with_norm(nn.BatchNorm2d(8)), batch=1)
    assert given(with_norm(nn.LayerNorm(8), flat=True), batch=1)


class Centred(nn.Module):
    """Subtracts the mean, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sub_(0.5) if self.in_place else x - 0.5


def test_a_model_that_changes_its_input_is_refused():
    """MOON, which shows the same batch to three models, ended in a traceback."""
    with pytest.raises(UsageError, match="E123 the model changes its input in place"):
        given(nn.Sequential(Centred(True), nn.Flatten(), nn.Linear(36, CLASSES)), "moon")
    assert given(nn.Sequential(Centred(False), nn.Flatten(), nn.Linear(36, CLASSES)), "moon")


@LANES
@pytest.mark.parametrize("method", ["flea", "moon"])
def test_torchs_own_layers_may_be_in_place(lanes, method):
    """A ReLU in place behind a cut changed the activation that FLea compares with the input."""
    results = []
    for in_place in (False, True):
        torch.manual_seed(1)
        body = (nn.Conv2d(1, 8, 3), nn.ReLU(in_place), nn.Dropout(0.2, in_place), nn.Flatten())
        module = nn.Sequential(*body, nn.Linear(128, CLASSES))
        results.append(trained(module, method, lanes=lanes).digest)
        assert module[1].inplace is in_place
    assert results[0] == results[1]
