"""Each of a sample's several inputs is scaled by itself, and whole numbers by nothing, wherever samples come
to a model.

Likely mistakes: ages in years beside a scan in [0, 1], scaled samples given for prediction, whole numbers
taken for floats.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.samples import a_part_of
from unskew.data.samples.packing import input_column
from unskew.errors import UnskewError
from unskew.methods.catalogue import entries

N, TRAIN = 150, 120
RNG = np.random.default_rng(3)
Y = np.arange(N) % 3
SCANS = (900 + 300 * RNG.random((N, 2, 4, 4)) * (1 + Y[:, None, None, None])).astype(np.float32)
AGES = (63 + 12 * RNG.normal(size=N) + 5 * Y).astype(np.float32)
IDS = RNG.integers(0, 90, (N, 4)) + Y[:, None]
RAW = {"scan": SCANS, "age": AGES, "ids": IDS}
SETTINGS = {"clients": 4, "rounds": 2, "epochs": 1, "batch": 8, "workers": 1, "skew": "dirichlet:1"}


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(100, 3)
        self.body = nn.Linear(32 + 1 + 3, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, scan: Tensor, age: Tensor, ids: Tensor) -> Tensor:
        assert ids.dtype is torch.int64
        h = torch.cat([scan.flatten(1), age[:, None], self.table(ids).mean(1)], 1)
        return self.head(self.body(h).relu())


def by_hand(given: dict[str, Any], rows: slice = slice(0, TRAIN)) -> dict[str, Any]:
    """Scans channel by channel and ages, standardised by the training samples."""
    mean, std = (getattr(SCANS[rows].astype(np.float64), how)((0, 2, 3)) for how in ("mean", "std"))
    scan = (given["scan"] - mean.astype("f4")[:, None, None]) / std.astype("f4")[:, None, None]
    age = (given["age"] - np.float32(AGES[rows].astype(np.float64).mean())) / np.float32(
        AGES[rows].astype(np.float64).std()
    )
    return {"scan": scan, "age": age, "ids": given["ids"]}


def cut(given: dict[str, Any], rows: slice) -> dict[str, Any]:
    return {name: values[rows] for name, values in given.items()}


def trained(given: dict[str, Any] = RAW, method: str = "fedavg", **more: Any) -> unskew.Result:
    data = (cut(given, slice(0, TRAIN)), Y[:TRAIN], cut(given, slice(TRAIN, N)), Y[TRAIN:])
    return unskew.run(method, data, model=Mixed(), **{**SETTINGS, **more})


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> unskew.Result:
    return trained(folder=tmp_path_factory.mktemp("runs"), name="r")


@pytest.mark.parametrize("lanes", ["1", "4"])
def test_inputs_are_standardised_as_one_would_by_hand(lanes):
    ours, theirs = trained(lanes=lanes), trained(by_hand(RAW), normalise="none", lanes=lanes)
    for name, t in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], t, rtol=0, atol=1e-5, msg=name)
    assert ours.scores() == theirs.scores()
    assert ours.digest != trained(normalise="none", lanes=lanes).digest


def test_constants_are_one_pair_a_channel_and_leave_whole_numbers_alone(result):
    mean, std = result.federation.applied
    assert len(mean) == len(std) == 1 + 4 + 2  # age, ids, scan
    assert mean[0] == pytest.approx(AGES[:TRAIN].mean(), rel=1e-5)
    assert (mean[1:5], std[1:5]) == ((0,) * 4, (1,) * 4)
    assert std[5:] == pytest.approx(SCANS[:TRAIN].std((0, 2, 3)), rel=1e-4)
    layout = result.federation.layout
    assert np.array_equal(input_column(layout, result.federation.x, 1), IDS[:TRAIN][:, :])


def test_only_inputs_that_need_it_are_scaled_unless_all_are_asked_for():
    centred = {**RAW, "scan": by_hand(RAW)["scan"]}
    said: list[str] = []
    auto = trained(centred, rounds=1, say=said.append)
    assert auto.federation.applied[0][5:] == (0, 0)
    assert (
        "scaled   input age standardised channel by channel: they are unscaled, such as channel 0"
        in "\n".join(said)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what was not scaled cannot have been scaled twice
        auto.predict({**cut(centred, slice(0, 60)), "scan": centred["scan"][:60] * 100})
    asked = trained(centred, rounds=1, normalise="dataset")
    assert asked.federation.applied[1][5:] != (1, 1)
    assert asked.federation.applied[1][1:5] == (1,) * 4


class Placed(Mixed):
    """Takes the inputs one after another, as their names lie in a row."""

    def forward(self, age: Tensor, ids: Tensor, scan: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(scan, age, ids)


WITH_WHOLE_NUMBERS_REFUSED = (
    *("augment", "fedbn", "fedbr", "feddpms", "fedfa", "fedfed", "fedgen_images", "fedmix"),
    *("naivemix", "norm", "fedavg_ft"),
)


FIRST = ("fedavg", "rebafl", "fedrdn", "standardise", "flea", "dpsgd", "fedmix")


@pytest.mark.parametrize("method", a_part_of(sorted(entries()), 6, FIRST))
def test_every_method_learns_from_scaled_inputs_alike_in_lanes_by_name_and_by_place_or_says_why_not(method):
    """One client after another by name, side by side by place. Unscaled they train apart."""
    few = {**SETTINGS, "clients": 3, "batch": 12, "skew": "iid"}
    ended: list[Any] = []
    for lanes, place in (("1", False), ("16", True)):
        train, test = (cut(RAW, rows) for rows in (slice(0, 36), slice(36, 48)))
        parts = [tuple(part[n] for n in sorted(part)) if place else part for part in (train, test)]
        data = (parts[0], Y[:36], parts[1], Y[36:48])
        try:
            ended.append(unskew.run(method, data, model=Placed() if place else Mixed(), lanes=lanes, **few))
        except UnskewError as error:
            ended.append(str(error))
    one, many = ended
    if method in WITH_WHOLE_NUMBERS_REFUSED:
        assert one == many
        assert len(one) < 300
        return
    assert one.federation.applied == many.federation.applied
    assert (one.federation.applied is None) == (method == "standardise")
    for (name, t), other in zip(
        one.model.state_dict().items(), many.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(t, other, rtol=0, atol=1e-5, msg=name)
    assert one.scores() == many.scores()


def test_predictions_take_samples_as_they_were_given(result):
    new = cut(RAW, slice(TRAIN, N))
    z = result.model(**{name: torch.as_tensor(values) for name, values in by_hand(new).items()})
    assert np.allclose(z.softmax(1).detach(), result.predict_proba(new), atol=1e-5)
    assert (result.predict(new) == Y[TRAIN:]).mean() == pytest.approx(result.scores()["last"])
    again = unskew.load(result.path, model=Mixed())
    assert np.array_equal(again.predict_proba(new), result.predict_proba(new))
