"""FLea against hand-worked numbers (Eq. 3-5, 8 of the paper) and a naive distance correlation."""

from __future__ import annotations

import pytest
import torch

from tests.fixtures import G, Z, assert_close, batch, onehot
from unskew.errors import UsageError
from unskew.methods.flea import FLea, decorrelation, kl, mix
from unskew.tasks.classification import Classification

X4 = torch.tensor([[0.0, 0], [1, 0], [0, 2], [3, 1]])
F4 = torch.tensor([[0.0], [1], [4], [2]])
ONES = torch.ones(4)


def test_mixing_uses_one_weight_a_sample_for_activation_and_label():
    f, fF = torch.tensor([[1.0, 2], [3, -1]]), torch.tensor([[0.0, 0], [1, 1]])
    ft, b = mix(f, batch(), fF, onehot([2, 2]), torch.tensor([0.25, 0.7]))
    assert_close(ft, [[0.25, 0.5], [2.4, -0.4]])
    assert_close(b.y, [[0.25, 0, 0.75], [0, 0.7, 0.3]])
    losses = Classification().loss(Z, b.y)
    assert_close(losses, [2.4913, 0.8303])
    assert_close(b.mean(losses), 1.6608)


def test_kl_in_both_directions():
    assert_close(kl(Z, G), [0.2795, 0.5786])
    assert_close(kl(G, Z), [0.3235, 0.4606])


def test_decorrelation_is_the_squared_distance_correlation():
    assert_close(decorrelation(X4, F4, ONES), 0.7698)
    assert_close(decorrelation(X4, F4, ONES).sqrt(), 0.8774)
    assert_close(1.6608 + 0.4291 + 3 * decorrelation(X4, F4, ONES), 4.3993, 3)


def naive(x: torch.Tensor, f: torch.Tensor) -> float:
    """Distance covariance from its definition, loops and all."""
    n = len(x)
    sides = []
    for v in (x.flatten(1), f.flatten(1)):
        d = [[float((v[i] - v[j]).norm()) for j in range(n)] for i in range(n)]
        row = [sum(r) / n for r in d]
        sides.append([[d[i][j] - row[i] - row[j] + sum(row) / n for j in range(n)] for i in range(n)])
    dot = lambda a, b: sum(a[i][j] * b[i][j] for i in range(n) for j in range(n)) / n**2  # noqa: E731
    return dot(*sides) / (dot(sides[0], sides[0]) * dot(sides[1], sides[1])) ** 0.5


def test_decorrelation_equals_the_definition_and_ignores_padding():
    g = torch.Generator().manual_seed(3)
    x, f = torch.randn(9, 3, 4, generator=g), torch.randn(9, 5, generator=g)
    expected = naive(x[:7], f[:7])
    weight = torch.tensor([1.0] * 7 + [0.0] * 2)
    assert decorrelation(x, f, weight).item() == pytest.approx(expected, abs=1e-5)
    assert decorrelation(x[:7], f[:7], torch.ones(7)).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("x", "f", "expected"),
    [
        ([0.0, 1, 2, 5], [1.0, 4, 7, 16], 1.0),  # f = 3x + 1
        ([0.0, 0, 1, 1], [0.0, 1, 0, 1], 0.0),  # independent
        ([0.0, 1, 2, 3], [2.0, 2, 2, 2], 0.0),  # 0/0
        ([0.0, 1], [3.0, 1], 0.0),  # two samples: constantly 1 and of no use
    ],
)
def test_decorrelation_at_its_edges(x, f, expected):
    x, f = torch.tensor(x)[:, None], torch.tensor(f)[:, None].requires_grad_()
    found = decorrelation(x, f, torch.ones(len(x)))
    assert found.item() == pytest.approx(expected, abs=1e-5)
    assert torch.isfinite(torch.autograd.grad(found, f, allow_unused=True)[0]).all()


def test_duplicates_have_a_finite_gradient():
    f = torch.tensor([[1.0], [1.0], [2.0], [4.0]], requires_grad=True)
    assert torch.isfinite(torch.autograd.grad(decorrelation(X4, f, ONES), f)[0]).all()


def test_arguments_are_checked():
    with pytest.raises(UsageError, match="variant"):
        FLea(variant="paperr")
    with pytest.raises(UsageError, match="alpha"):
        FLea(alpha=1.5)
