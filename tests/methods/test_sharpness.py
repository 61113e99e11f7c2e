"""The methods that take a step's gradient at other weights, against hand-worked numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.fixtures import assert_close, client
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.fedlesam import FedLESAM
from unskew.methods.fedsam import FedSAM

W = {"w": torch.tensor([[1.0, -2.0]]), "b": torch.tensor([0.5])}
GRADIENT = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0])}


def test_fedsam_climbs_so_far():
    there = FedSAM(rho=0.5).perturb(GRADIENT, W, client())
    assert_close(there["w"], [[1.3, -2.0]])
    assert_close(there["b"], [0.9])
    flat = FedSAM(rho=0.5).perturb({n: 0 * g for n, g in GRADIENT.items()}, W, client())
    assert flat["w"].tolist() == W["w"].tolist()  # nowhere to climb is no NaN


def test_fedasam_climbs_by_the_size_of_a_matrixs_weights():
    """T = (1 + 0.2, 1), |T g| = |(3.6, 4)| = 5.3814."""
    there = FedSAM(rho=1.0, adaptive=True).perturb(GRADIENT, W, client())
    assert_close(there["w"][0, 0], 1 + 1.2 * 3.6 / 5.3814)
    assert_close(there["b"], [0.5 + 4 / 5.3814])


def test_fedlesam_looks_back_to_where_the_global_model_was():
    fed = SimpleNamespace(shared=("w", "b"))
    c = client(fed=fed, mine={"old": {"w": torch.tensor([[4.0, -2.0]]), "b": torch.tensor([4.5])}})
    e = FedLESAM(rho=0.5).begin(W, c)["e"]
    assert_close(e["w"], [[0.3, 0.0]])
    assert_close(e["b"], [0.4])
    assert FedLESAM().begin(W, client(fed=fed, mine={"old": W}))["e"]["w"].tolist() == [[0, 0]]


def test_only_one_part_says_where_gradients_are_taken():
    with pytest.raises(
        UsageError, match="fedsam and fedlesam each say at which weights a step's gradient is taken"
    ):
        registry.parse("fedsam+fedlesam")
