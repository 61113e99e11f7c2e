"""Each of a sample's several inputs is scaled by itself, and whole numbers by nothing, wherever samples come
to a model.

Likely mistakes: ages in years beside a scan in [0, 1], scaled samples given for prediction, whole numbers
taken for floats.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.runs.test_export_several import answers
from tests.samples import a_part_of
from unskew.data.files.archives import read_archive
from unskew.data.readers.from_npz import load_dataset, save_dataset
from unskew.data.samples import scaling
from unskew.data.samples.packing import input_column
from unskew.data.standardisation import standardise
from unskew.errors import UnskewError, UsageError
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


def test_an_input_that_never_varies_is_shifted_alone():
    flat = unskew.data.arrays({"a": np.full(30, 1e4, np.float32), "b": RNG.random((30, 2))}, Y[:30])
    taken = standardise(flat, always=True)
    assert not input_column(taken.layout, taken.x, 0).any()
    assert taken.applied[1][0] == 1


def test_whole_numbers_alone_cannot_be_standardised():
    whole = unskew.data.arrays({"ids": IDS, "seen": IDS > 5}, Y)
    with pytest.raises(
        UsageError, match=r"E109 normalise=dataset: none of a sample's inputs are floats .*ids int64"
    ):
        standardise(whole, always=True)
    assert standardise(whole, always=False) is whole


class Placed(Mixed):
    """Takes the inputs one after another, as their names lie in a row."""

    def forward(self, age: Tensor, ids: Tensor, scan: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(scan, age, ids)


WITH_WHOLE_NUMBERS_REFUSED = {
    "augment",
    "fedbn",
    "fedbr",
    "feddpms",
    "fedfa",
    "fedfed",
    "fedgen_images",
    "fedmix",
} | {
    "naivemix",
    "norm",
    "fedavg_ft",
}


FIRST = (
    "fedavg",
    "scaffold",
    "rebafl",
    "fedrdn",
    "standardise",
    "fedproto",
    "flea",
    "fedbn",
    "dpsgd",
    "augment",
    "fedmix",
)


@pytest.mark.parametrize("method", a_part_of(sorted(entries()), 3, FIRST))
def test_every_method_learns_from_scaled_inputs_alike_in_lanes_by_name_and_by_place_or_says_why_not(method):
    """One client after another by name, side by side by place. Ages and scans are far from 0, so unscaled
    they train apart."""
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


class Whole(Mixed):
    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.body(nn.functional.pad(self.table(ids).mean(1), (0, 33))).relu())


def test_a_part_that_would_scale_nothing_is_refused():
    data = ({"ids": IDS[:TRAIN]}, Y[:TRAIN])
    with pytest.raises(
        UsageError, match="E108 'standardise' cannot run here: none of a sample's inputs are floats"
    ):
        unskew.run("standardise", data, model=Whole(), **SETTINGS)


def test_predictions_take_samples_as_they_were_given(result):
    new = cut(RAW, slice(TRAIN, N))
    z = result.model(**{name: torch.as_tensor(values) for name, values in by_hand(new).items()})
    assert np.allclose(z.softmax(1).detach(), result.predict_proba(new), atol=1e-5)
    assert (result.predict(new) == Y[TRAIN:]).mean() == pytest.approx(result.scores()["last"])
    again = unskew.load(result.path, model=Mixed())
    assert np.array_equal(again.predict_proba(new), result.predict_proba(new))


def test_samples_that_were_scaled_before_are_told_by_the_inputs_name(result):
    new = cut(by_hand(RAW), slice(TRAIN, N))
    with pytest.warns(
        UserWarning, match=r"input age of these samples has mean -?0\.\d+ .*are they scaled already"
    ):
        result.predict(new)
    with pytest.warns(UserWarning, match=r"input scan, channel 0, of these samples has mean"):
        result.predict({**new, "age": AGES[TRAIN:]})


def test_a_run_goes_on_to_the_same_bits(tmp_path, result):
    class Stop(Exception):
        pass

    def stop(_: object, summary: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        trained(folder=tmp_path, name="r", shown=stop)
    assert trained(folder=tmp_path, name="r").digest == result.digest


@pytest.mark.parametrize("method", ["fedavg", "standardise"])
@pytest.mark.parametrize("kind", ["safetensors", "torch-export"])
def test_a_folder_alone_scales_as_the_run_does(tmp_path, method, kind):
    ours = trained(method=method)
    ours.export(tmp_path / "e", kind)
    assert np.allclose(
        answers(tmp_path / "e", RAW, Mixed(), 9), ours.trained.outputs(cut(RAW, slice(0, 9))), atol=1e-4
    )
    inputs = json.loads((tmp_path / "e/model.json").read_text())["inputs"]
    assert [len(each["mean"] or ()) for each in inputs] == [1, 0, 2]


@pytest.mark.parametrize("lanes", ["1", "4"])
def test_clients_agree_on_the_constants_of_all_samples(lanes):
    """Ages and scans; of whole numbers nothing is said."""
    together, apart = trained(normalise="dataset", lanes=lanes), trained(method="standardise", lanes=lanes)
    mean, std = together.federation.applied
    down = apart.trained.end.down["standardise"]
    assert np.allclose(down["mu"], mean, rtol=1e-5)
    assert np.allclose(down["sigma"], std, rtol=1e-3)
    for name, t in together.model.state_dict().items():
        torch.testing.assert_close(apart.model.state_dict()[name], t, rtol=0, atol=5e-3, msg=name)
    new = cut(RAW, slice(TRAIN, N))
    assert np.allclose(apart.predict_proba(new), together.predict_proba(new), atol=1e-2)


def test_a_set_that_is_kept_for_processes_comes_back_with_its_constants(tmp_path):
    taken = standardise(unskew.data.arrays(RAW, Y), always=True)
    save_dataset(taken, tmp_path / "kept.npz")
    back = load_dataset(read_archive(tmp_path / "kept.npz"))
    assert (back.applied, back.layout) == (taken.applied, taken.layout)
    assert np.allclose(back.to_natural(back.x), unskew.data.arrays(RAW, Y).x, rtol=1e-4, atol=1e-3)


def test_a_channel_is_called_by_its_input():
    layout = unskew.data.arrays(RAW, Y).layout
    assert [layout.called(c) for c in (0, 2, 6)] == [
        "input age",
        "input ids, channel 1,",
        "input scan, channel 1,",
    ]
    x = unskew.data.arrays(RAW, Y).x
    constants = scaling.find_constants(x, layout)
    assert np.allclose(
        scaling.undo(scaling.apply(x, constants, layout), constants, layout), x, rtol=1e-4, atol=1e-3
    )
