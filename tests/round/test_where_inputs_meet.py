"""Parts that work inside a model, at a cut, where samples have several inputs: all of them have to meet
there.

Likely mistakes: a cut that an input passes by, which would stay unmixed beside a mixed label; a path that is
closed when the model begins, or is open for whole numbers only; an input that counts for nothing because its
numbers are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

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
from unskew.methods.flea import FLea, squared_distance_correlation
from unskew.runs.measures import correlation
from unskew.runs.measures.correlation import distance_correlation

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
    with pytest.raises(
        UsageError, match="E104 a pass cannot go on from 'body' alone: other inputs of a sample pass it by"
    ):
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


class Beside(nn.Module):
    """A layer, and what enters it beside what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(65, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inside(x), x], 1)


class Meets(Scans):
    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 3)

    def forward(self, scan: Tensor, age: Tensor) -> Tensor:
        return self.head(self.body(torch.cat([scan.flatten(1), age[:, None]], 1)))


@pytest.mark.parametrize(
    ("module", "still"),
    [
        (Scans(), False),
        (Apart(), True),
        (Meets(nn.Sequential(nn.Linear(65, 8), nn.ReLU()), 8), False),
        (Meets(Beside(), 73), True),
        (Meets(nn.LayerNorm(65), 65), True),
    ],
    ids=range(5),
)
def test_an_input_lies_where_one_may_come_by_itself(module, still):
    net = net_of(module)
    assert net.is_input_at("features") is still
    assert net.is_input_at("body") is still
    assert net.is_input_at("convolution")
    assert not Network(Row(), (65,)).is_input_at("features")


@pytest.mark.parametrize("lanes", ["1", "4"])
def test_flea_mixes_where_all_inputs_meet(lanes):
    few = slice(0, 36)
    row = np.concatenate([AGES[few, None], SCANS[few].reshape(36, -1)], 1)
    several = {"scan": SCANS[few], "age": AGES[few]}

    def run(given: Any, model: nn.Module, method: str) -> unskew.Result:
        return unskew.run(
            method, (given, Y[few], given, Y[few]), model=model, **{**FEW, "rounds": 3, "lanes": lanes}
        )

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


def test_flea_hides_every_input_alike():
    """A scan of 64 numbers, or an age in days, would have been all that counted in the distances of rows."""
    g = torch.Generator().manual_seed(3)
    x, f = torch.randn(12, 65, generator=g), torch.randn(12, 4, generator=g)

    def dependence(layout: Any, x: Tensor) -> float:
        b, c = (
            Batch(x, torch.zeros(12, 3), torch.ones(12)),
            SimpleNamespace(net=SimpleNamespace(layout=layout, embeds=False)),
        )
        return float(FLea()._dependence(b, f, cast("Client", c)))

    by_hand = [distance_correlation(part, f)[1] for part in (x[:, :1], x[:, 1:])]
    assert dependence(LAYOUT, x) == pytest.approx(sum(by_hand) / 2, abs=1e-5)
    assert dependence(LAYOUT, x) != pytest.approx(distance_correlation(x, f)[1], abs=1e-2)
    kinds = torch.arange(12) % 4
    by_hand = [distance_correlation(x[:, :64], f)[1], distance_correlation(kinds[:, None], f, kinds=True)[1]]
    assert dependence(GATED, torch.cat([x[:, :64], kinds[:, None]], 1)) == pytest.approx(
        sum(by_hand) / 2, abs=1e-5
    )


def test_kinds_are_as_far_apart_as_any_two_others():
    g = torch.Generator().manual_seed(4)
    kinds, f = torch.randint(0, 5, (12, 2), generator=g), torch.randn(12, 4, generator=g)
    indicators = nn.functional.one_hot(kinds, 5).float().flatten(1)
    expected = distance_correlation(indicators, f)
    assert distance_correlation(kinds, f, kinds=True) == pytest.approx(expected, abs=1e-9)
    assert float(squared_distance_correlation(kinds.float(), f, torch.ones(12), kinds=True)) == pytest.approx(
        expected[1], abs=1e-5
    )
    assert expected[1] != pytest.approx(distance_correlation(kinds, f)[1], abs=1e-3)


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
    with pytest.raises(
        UsageError, match="E108 'tapping' cannot run here: it changes labels with what lies at 'convolution'"
    ):
        trained(Tapping(labels=True), lanes=lanes)


class Residual(nn.Module):
    def __init__(self, beside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.head, self.beside = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 3), beside

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.convolution(x) + (x if self.beside else 0)).flatten(1))


def test_nor_where_a_shortcut_of_one_input_does():
    trained(Tapping(labels=True), SCANS, Residual(beside=False))
    with pytest.raises(UsageError, match="E108 'tapping' cannot run here: it changes labels"):
        trained(Tapping(labels=True), SCANS, Residual(beside=True))


def test_the_probe_measures_every_input_by_itself(monkeypatch):
    monkeypatch.setattr(
        correlation, "distance_correlation", lambda x, f, kinds=False: (x.shape[1], float(kinds))
    )

    class Sexes(Meets):
        def forward(self, scan: Tensor, sex: Tensor) -> Tensor:
            return super().forward(scan, sex.float())

    given = {"scan": SCANS, "sex": Y % 2}
    record = trained("flea", given, Sexes(nn.Linear(65, 8), 8), measure="correlation", eval_every=1).record
    values = {
        row["metric"]: row["value"]
        for row in record.rows["metrics"]
        if row["metric"].startswith("correlation")
    }
    assert values == {"correlation": 65 / 2, "correlation_squared": 1 / 2}


def test_the_ledger_says_that_activations_leave_where_all_inputs_were_mixed():
    def leaves(model: nn.Module, method: str) -> set[str]:
        rows = trained(method, model=model).record.rows["ledger"]
        return {row["guarantee"] for row in rows if row["share"] == "flea/features"}

    assert leaves(Scans(), "flea") == {"empirical"}
    assert leaves(Meets(Beside(), 73), "flea") == {"none"}
