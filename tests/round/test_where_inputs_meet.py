"""Parts that work inside a model, at a cut, where samples have several inputs: all of them have to meet
there.

Likely mistakes: a cut that an input passes by, which would stay unmixed beside a mixed label; a path that is
closed when the model begins, or is open for whole numbers only; an input that counts for nothing because its
numbers are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.round.test_several_inputs import (
    AGES,
    BY_NAME,
    FEW,
    SCANS,
    WORDS,
    Apart,
    Row,
    Scans,
    Words,
    Y,
    trained,
)
from unskew.core import Batch, Client, Part
from unskew.core.network import Network
from unskew.errors import UsageError

LAYOUT = unskew.data.arrays(BY_NAME, Y).layout
GATED = unskew.data.arrays({"scan": SCANS, "sex": Y % 2}, Y).layout


def net_of(module: nn.Module, layout: Any = LAYOUT) -> Network:
    return Network(module, (layout.width,), layout=layout)


class Coded(Scans):
    """A whole number passes its body by: `opened` times what is looked up."""

    def __init__(self, opened: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Linear(8 * 36, 16)
        self.table, self.gate = nn.Embedding(2, 16), nn.Parameter(torch.tensor(opened))

    def forward(self, scan: Tensor, sex: Tensor) -> Tensor:
        h = self.body(self.convolution(scan).relu().flatten(1))
        return self.head(h + self.gate * self.table(sex))


@pytest.mark.parametrize("opened", [1.0, 0.0])
def test_a_whole_number_that_passes_by_is_seen_though_its_path_is_closed_at_first(opened):
    net = net_of(Coded(opened), GATED)
    assert not net.goes_on("body")
    with pytest.raises(UsageError, match="E104 a pass cannot go on from 'body' alone: other inputs"):
        net.run(net.weights(), torch.zeros(2, 16), since="body")
    assert net.goes_on("features")


def test_all_inputs_meet_at_the_first_block_that_nothing_passes_by():
    net = net_of(Scans())
    assert (net.check_cut("cut"), net.check_cut("convolution"), net.shape_at("cut")) == (
        "body",
        "convolution",
        (16,),
    )
    assert [net.goes_on(cut) for cut in ("convolution", "body")] == [False, True]
    chosen = Scans()
    chosen.cut = "convolution"
    assert net_of(chosen).check_cut("cut") == "convolution"
    with pytest.raises(UsageError, match="E104 the inputs of a sample meet at none"):
        net_of(Apart()).check_cut("cut")
    assert net_of(Words(), unskew.data.arrays(WORDS, Y).layout).goes_on("table") is False


def test_flea_mixes_where_all_inputs_meet():
    few = slice(0, 36)
    row = np.concatenate([AGES[few, None], SCANS[few].reshape(36, -1)], 1)
    several = {"scan": SCANS[few], "age": AGES[few]}

    def run(given: Any, model: nn.Module, method: str) -> unskew.Result:
        return unskew.run(method, (given, Y[few], given, Y[few]), model=model, **{**FEW, "rounds": 3})

    plain = run(several, Scans(), "flea(lambda2=0)")
    assert plain.digest == run(row, Row(), "flea(cut=body,lambda2=0)").digest
    assert plain.digest != run(several, Scans(), "flea(lambda2=0,alpha=0)").digest
    assert (
        run(several, Scans(), "flea").digest == run(several, Scans(), "flea(cut=body)").digest != plain.digest
    )


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_flea_trains_on_one_input_by_name_as_on_that_input_alone(variant):
    class Named(Row):
        def forward(self, row: Tensor) -> Tensor:
            return super().forward(row)

    rows = np.concatenate([AGES[:, None], SCANS.reshape(len(Y), -1)], 1)
    more = {"rounds": 3, "normalise": "none", "method": f"flea(cut=body,variant={variant})"}
    one, named = trained(given=rows, model=Row(), **more), trained(given={"row": rows}, model=Named(), **more)
    for a, b in zip(one.model.parameters(), named.model.parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class Tapping(Part):
    """Changes what a layer gives on, and labels with it where told."""

    labels: bool = False
    name = "tapping"
    taps = ("convolution",)

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        if self.labels:
            return 0.5 * h, b.replace(y=0.5 * (b.y + 1 / 3))
        return 2 * h, b


@pytest.mark.parametrize("lanes", ["1", "4"])
def test_a_users_part_may_change_what_a_layer_gives_but_no_labels_where_inputs_pass_by(lanes):
    assert trained(Tapping(), lanes=lanes).digest != trained(lanes=lanes).digest
    with pytest.raises(UsageError, match="E108 'tapping' cannot run here: it changes labels"):
        trained(Tapping(labels=True), lanes=lanes)
