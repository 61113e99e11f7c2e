"""The methods whose clients learn from a fixed classifier, from each other's outputs or gradients:
hand-worked numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.fixtures import assert_close, client
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.fd import FD
from unskew.methods.fedetf import FedETF, Unit, etf_classifier
from unskew.methods.fediir import slope
from unskew.methods.fedvls import vacant, wrong
from unskew.methods.fml import kl_divergence

SEEN = {"p": torch.tensor([[1.6, 0.4], [0.0, 1.0]]), "has": torch.tensor([2.0, 1.0]), "t": torch.tensor(3.0)}
OWN = {"p": torch.tensor([[0.6, 0.4], [0.0, 1.0]]), "has": torch.tensor([1.0, 1.0]), "t": torch.tensor(3.0)}


def test_the_classifier_of_fedetf_stands_at_equal_angles():
    V = etf_classifier(5).weight
    assert_close(V @ V.T, torch.eye(5) * 1.25 - 0.25)
    assert not V.requires_grad
    assert_close(Unit()(torch.tensor([[3.0, 4.0]])), [[0.6, 0.8]])


def test_fedetf_masks_what_the_client_lacks():
    z = FedETF(gamma=0.0).logits(torch.zeros(1, 3), None, client(counts=torch.tensor([5.0, 1, 0])))
    assert z.tolist() == [[0, 0, -torch.inf]]


def test_fd_leaves_out_what_the_client_itself_said_last_round():
    assert_close(FD().begin({}, client(down=SEEN, mine=OWN))["q"], [[1.0, 0.0], [0.0, 0.0]])
    absent = OWN | {"t": torch.tensor(2.0)}
    assert_close(FD().begin({}, client(down=SEEN, mine=absent))["q"], [[0.8, 0.2], [0.0, 1.0]])


def test_the_gradient_of_a_head_is_autograds():
    head, h, y = nn.Linear(2, 3), torch.randn(4, 2), torch.eye(3)[[0, 2, 1, 1]]
    nn.functional.cross_entropy(head(h[:3]), y[:3], reduction="sum").backward()
    padded = slope(head(h), h, y, torch.tensor([1.0, 1, 1, 0]))
    assert_close(padded, torch.cat([head.weight.grad, head.bias.grad[:, None]], 1))


def test_how_far_two_outputs_are_apart():
    assert_close(kl_divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])), [0.1201])


def test_a_projection_after_the_fixed_classifier_is_refused():
    with pytest.raises(UsageError, match="where the fixed classifier is"):
        registry.parse("fedetf+moon")


def test_fedvls_distils_nothing_where_no_class_is_absent():
    z = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    full = vacant(z, torch.ones(1, 3), torch.tensor([1.0, 1, 1])).sum()
    full.backward()
    assert full == 0
    assert z.grad.tolist() == [[0, 0, 0]]
    assert_close(vacant(z, torch.zeros(1, 3), torch.tensor([0.0, 1, 0])), [0.1201])


def test_fedvls_lowers_the_logits_of_wrong_classes_but_of_no_padding():
    """p = (3/4, 1/4), C = 2: of class 0 the sample of class 1 counts e^(1 - log 1.5), its own 1; of class 1
    e^(2 - log 0.5)."""
    z, y = torch.tensor([[3.0, 2.0], [1.0, 5.0], [9.0, 9.0]]), torch.eye(2)[[0, 1, 0]]
    expected = (
        0.75 * torch.tensor((1 + 2.71828 / 1.5) / 2).log()
        + 0.25 * torch.tensor((7.38906 / 0.5 + 1) / 2).log()
    )
    assert_close(wrong(z, y, torch.tensor([1.0, 1, 0]), torch.tensor([3.0, 1])), expected)
