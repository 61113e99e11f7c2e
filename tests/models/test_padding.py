"""Tables with a row of padding: it learns nothing, side by side as one by one, and a model may name what it
looks up.

Likely mistakes: torch.func, which adds up the gradient of padding, too; a hook that stays on the module
handed back.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unskew

WORDS, N = 12, 60
RNG = np.random.default_rng(6)
Y = RNG.integers(0, 3, N)
X = RNG.integers(1, WORDS, (N, 5)) * (np.arange(5) < RNG.integers(2, 6, (N, 1)))


class Words(nn.Module):
    """The mean of all places, padding included. named: whether the table is called with a keyword."""

    def __init__(self, named: bool = False, padding: int | None = 0) -> None:
        super().__init__()
        self.table, self.head, self.named = (
            nn.Embedding(WORDS, 4, padding_idx=padding),
            nn.Linear(4, 3),
            named,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.table(input=x) if self.named else self.table(x)).mean(1))


def trained(folder, lanes: str, method: str = "fedavg", **given: object) -> unskew.Result:
    torch.manual_seed(1)
    settings = {"clients": 3, "rounds": 2, "epochs": 2, "batch": 8, "skew": "iid", "lr": 0.5, "workers": 1}
    return unskew.run(
        method, (X, Y, X, Y), model=Words(**given), lanes=lanes, folder=folder, progress=False, **settings
    )


def codes(result: unskew.Result) -> set[str]:
    return {row["code"] for row in result.record.rows["events"]}


@pytest.mark.parametrize("named", [False, True])
def test_padding_learns_nothing_in_lanes_as_in_one(tmp_path, named):
    one, three = trained(tmp_path / "1", "1", named=named), trained(tmp_path / "3", "3", named=named)
    assert "E128" not in codes(three)
    together = three.model.state_dict()
    torch.testing.assert_close(together, one.model.state_dict(), rtol=1e-4, atol=1e-6)
    torch.manual_seed(1)
    first = Words(padding=0).table.weight
    assert torch.equal(together["table.weight"][0], first[0])
    assert not torch.equal(together["table.weight"][1], first[1])


def test_a_gradient_for_each_sample_can_be_had(tmp_path):
    assert len(trained(tmp_path, "3", "fedavg+dpsgd").record.series("global", "accuracy")[0]) > 1
