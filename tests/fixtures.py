"""Fixture A of the method tests, and the smallest objects hooks can be called with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from unskew.core.client import Batch, Client, Out
from unskew.tasks.task import Classification

Z = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 0.5]])
G = torch.tensor([[1.0, 1.0, 0.0], [0.5, 0.0, 2.0]])
Y = torch.tensor([0, 1])
COUNTS = torch.tensor([30.0, 10.0, 0.0])


def onehot(y: Any, classes: int = 3) -> Tensor:
    return torch.nn.functional.one_hot(torch.as_tensor(y), classes).float()


def batch(x: Tensor | None = None, y: Tensor | None = None, weight: Tensor | None = None) -> Batch:
    y = onehot(Y) if y is None else y
    return Batch(
        torch.zeros(len(y), 1) if x is None else x, y, torch.ones(len(y)) if weight is None else weight
    )


class Told(SimpleNamespace):
    pulled: Tensor | None = None
    pull = Client.pull
    floor = 0.0
    mean_of = Client.mean_of


def samples_of(shape: tuple[int, ...]) -> Any:
    """What a hook reads of a Fed whose samples have one input of this shape."""
    return SimpleNamespace(shape=shape, net=SimpleNamespace(layout=None))


def client(**facts: Any) -> Any:
    """What a hook reads from a Client; only what is given."""
    fed = SimpleNamespace(
        classes=3,
        task=Classification(),
        momentum=0.0,
        optimiser="sgd",
        clients=4,
        **vars(samples_of((1, 2, 2))),
    )
    return Told(
        **{
            "fed": fed,
            "counts": COUNTS,
            "n": COUNTS.sum(),
            "down": {},
            "mine": {},
            "noise": {},
            "t": 1,
            **facts,
        }
    )


def out(z: Tensor, **more: Any) -> Out:
    return Out(**{"logits": z, "raw": z, "features": z, "own": batch(), **more})


def assert_close(found: Any, expected: Any, digits: int = 4) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float32),
        torch.as_tensor(expected, dtype=torch.float32),
        rtol=0,
        atol=0.6 * 10**-digits,
    )
