"""Samples of several inputs: every form gives the same rows, and what cannot be meant is refused in one
sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset

from unskew import data
from unskew.data import prediction_inputs
from unskew.data.samples import packing
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.packing import input_column
from unskew.data.standardisation import standardise
from unskew.errors import DataError
from unskew.formats.input_layout import Input, Layout

N = 40
RNG = np.random.default_rng(4)
SCANS, AGES = RNG.random((N, 1, 8, 8), dtype=np.float32), RNG.normal(size=N).astype(np.float32)
IDS, PRESENT = RNG.integers(0, 50, (N, 6)), RNG.random((N, 6)) > 0.3
Y = np.arange(N) % 2
BY_NAME = {"image": SCANS, "age": AGES}


class Samples(TorchDataset):
    """Samples that a function of their number gives, with the classes 0 and 1 in turn."""

    def __init__(self, give):
        self.give = give

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.give(i), int(Y[i])


def read(given: Any) -> Dataset:
    taken = data.take(given)
    assert isinstance(taken, Dataset)
    return taken


def same(one: Dataset, other: Dataset) -> bool:
    """Whether the two hold the same samples, which are packed alike."""
    pairs = ((one.x, other.x), (one.x_test, other.x_test), (one.y, other.y))
    return one.layout == other.layout and all(np.array_equal(a, b) for a, b in pairs)


def by_name(i: int) -> dict[str, Any]:
    return {"image": torch.tensor(SCANS[i]), "age": float(AGES[i])}


class Tokenised(Samples):
    """Samples as a Trainer of Hugging Face takes them: a tokenizer's lists, and labels."""

    def __getitem__(self, i):
        present = PRESENT[i].astype(int)
        tokens = {"input_ids": IDS[i].tolist(), "attention_mask": present.tolist()}
        return {"text": "left out", **tokens, "labels": int(Y[i])}


def test_a_tokenizer_s_keys_are_inputs_by_name():
    tokens = {"input_ids": IDS, "attention_mask": PRESENT.astype(int)}
    taken = read(Tokenised(None))
    assert same(taken, read((tokens, Y)))
    assert taken.intake
    assert any("text" in note for _, note in taken.intake.notes)


FORMS = {
    "a torch Dataset": lambda: Samples(by_name),
    "names in another order": lambda: Samples(lambda i: dict(reversed(by_name(i).items()))),
    "arrays": lambda: (BY_NAME, Y),
    "tensors of float64": lambda: (
        {"age": torch.tensor(AGES, dtype=torch.float64), "image": torch.tensor(SCANS)},
        Y,
    ),
    "data.arrays": lambda: data.arrays(BY_NAME, Y),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_inputs_by_name_is_the_same_set(form):
    taken = read(FORMS[form]())
    assert taken.layout == Layout((Input("age", ()), Input("image", (1, 8, 8))), named=True)
    assert same(taken, data.arrays(BY_NAME, Y))
    rows = np.concatenate([taken.x, taken.x_test])
    assert sorted(map(bytes, rows)) == sorted(
        bytes(np.r_[age, scan.ravel()]) for age, scan in zip(AGES, SCANS)
    )


@pytest.mark.parametrize(
    "give",
    [
        lambda: Samples(lambda i: (SCANS[i], AGES[i])),
        lambda: Samples(lambda i: [SCANS[i], torch.tensor(AGES[i])]),
        lambda: ((SCANS, AGES), Y),
        lambda: ((SCANS, AGES), Y.tolist()),
    ],
    ids=range(4),
)
def test_every_form_of_inputs_by_place_is_the_same_set(give):
    taken = read(give())
    assert taken.layout == Layout((Input("1", (1, 8, 8)), Input("2", ())), named=False)
    assert same(taken, data.arrays((SCANS, AGES), Y))


def test_a_test_set_may_be_given_in_every_form():
    for given in (
        (BY_NAME, Y, {"age": AGES[:9], "image": SCANS[:9]}, Y[:9]),
        ((BY_NAME, Y), ({"age": AGES[:9], "image": SCANS[:9]}, Y[:9])),
        {"train": (BY_NAME, Y), "test": ({"age": AGES[:9], "image": SCANS[:9]}, Y[:9])},
    ):
        taken = read(given)
        assert len(taken.x) == N
        assert np.array_equal(taken.x_test, taken.x[:9])
    taken = read(((SCANS, AGES), Y, (SCANS[:9], AGES[:9]), Y[:9]))
    assert np.array_equal(taken.x_test, taken.x[:9])


def test_an_archive_holds_inputs_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", **{"x.image": SCANS, "x.age": AGES, "y": Y, "site": Y})
    taken = data.npz(tmp_path / "a.npz")
    assert same(taken, data.arrays(BY_NAME, Y, columns={"site": Y}))
    assert list(taken.columns) == ["site"]
    halves = {f"x_{part}.{n}": v for part in ("train", "test") for n, v in BY_NAME.items()}
    np.savez(tmp_path / "b.npz", **halves, y_train=Y, y_test=Y)
    assert np.array_equal(data.npz(tmp_path / "b.npz").x_test, data.arrays(BY_NAME, Y, test=0).x)


def test_samples_to_predict_are_read_by_name_or_in_order(tmp_path):
    np.savez(tmp_path / "named.npz", age=AGES, image=SCANS)
    names, x = prediction_inputs.read_inputs(tmp_path / "named.npz", {}, data.arrays(BY_NAME, Y).layout)
    assert names == [str(i) for i in range(N)]
    assert np.array_equal(x["image"], SCANS)
    placed = data.arrays((SCANS, AGES), Y).layout
    np.savez(tmp_path / "placed.npz", SCANS, AGES)
    _, x = prediction_inputs.read_inputs(tmp_path / "placed.npz", {}, placed)
    assert np.array_equal(x[1], AGES)
    np.savez(tmp_path / "turned.npz", AGES, SCANS)
    with pytest.raises(DataError, match=r"E403 .*turned.npz: input 1 is \[\] in a sample"):
        prediction_inputs.read_inputs(tmp_path / "turned.npz", {}, placed)
    np.save(tmp_path / "x.npy", SCANS)
    with pytest.raises(DataError, match=r"E403 .*x.npy is no .npz"):
        prediction_inputs.read_inputs(tmp_path / "x.npy", {}, placed)


def test_types_are_those_that_the_model_will_see():
    levels = (SCANS * 255).astype(np.uint8)
    taken = data.arrays(
        {"image": levels, "ids": IDS, "mask": PRESENT, "row": IDS.astype(np.uint8)}, Y, test=0
    )
    assert taken.layout
    assert str(taken.layout) == "ids int64 [6], image uint8 [1, 8, 8], mask bool [6], row int64 [6]"
    assert taken.layout.whole
    columns = [input_column(taken.layout, taken.x, i) for i in range(4)]
    assert np.array_equal(columns[0], IDS)
    assert np.array_equal(columns[1], levels.reshape(N, -1) / np.float32(255))
    assert np.array_equal(columns[2], PRESENT)
    assert taken.intake
    assert taken.intake.notes[0] == (
        "scaled",
        "input 'image': whole numbers of an image were divided by 255",
    )
    assert taken.x.dtype == np.float32


class Odd:
    """Samples of which number 3 is given otherwise."""

    def __init__(self, other: Any):
        self.other = other

    def __len__(self):
        return N

    def __getitem__(self, i):
        return (self.other if i == 3 else by_name(i)), int(Y[i])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            lambda: Odd({"image": SCANS[0]}),
            r"E403 Odd: sample 3 has the inputs \['image'\], sample 0 \['image', 'age'\]",
        ),
        (lambda: Odd(SCANS[0]), "E403 Odd: sample 3 is a single ndarray"),
        (
            lambda: Odd({"image": SCANS[0, :, :4], "age": 1.0}),
            r"E403 Odd: input 'image': sample 0 is .*, sample 3 is float32 \[1, 4, 8\]",
        ),
        (lambda: Odd({"image": SCANS[0], "age": np.nan}), "E405 arrays: input 'age' of sample 3 holds nan"),
        (
            lambda: ({"age": AGES, "image": SCANS[1:]}, Y),
            "E403 arrays: input 'age' has 40 samples, input 'image' 39",
        ),
        (
            lambda: ({"the age": AGES, "image": SCANS}, Y),
            "E403 arrays: the input 'the age' has a name that is no keyword",
        ),
        (
            lambda: (BY_NAME, IDS),
            r"E404 arrays: labels are int64 .*give one class a sample",
        ),
        (
            lambda: (BY_NAME, Y, {"age": AGES, "image": SCANS.astype(np.float64)[:, :, :4]}, Y),
            "E403 .*training and test samples differ: .*image float32",
        ),
        (
            lambda: (BY_NAME, Y, SCANS, Y),
            "E403 arrays: only one of training and test samples",
        ),
        (
            lambda: {"north": (BY_NAME, Y), "south": ({"age": IDS[:, 0], "image": SCANS}, Y)},
            "E403 samples of 'north' and 'south' have other inputs: ",
        ),
        (
            lambda: {"north": (BY_NAME, Y), "south": (SCANS, Y)},
            "E403 'south' has samples with one input",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(given, text):
    with pytest.raises(DataError, match=text) as refused:
        data.take(given())
    assert "\n" not in str(refused.value)


def test_whole_numbers_up_to_the_limit_are_kept_exactly():
    ids = np.array([[-packing.LARGEST_WHOLE], [packing.LARGEST_WHOLE]] * 20)
    assert np.array_equal(data.arrays({"ids": ids}, Y, test=0).x, ids)
    for beyond in (ids + 1, ids - 1, ids.astype(np.uint64) * 0 + np.uint64(2**64 - 1)):
        with pytest.raises(DataError, match=r"E405 .*16,777,216"):
            data.arrays({"ids": beyond}, Y)


def test_inputs_are_not_scaled_by_each_other_and_it_is_told():
    taken = data.arrays({"image": SCANS, "age": AGES * 12 + 63, "ids": IDS * 100}, Y)
    after = standardise(taken, always=False)
    assert np.array_equal(after.x[:, 1:], taken.x[:, 1:])
    assert abs(after.x[:, 0].mean()) < 1e-5
    assert after.intake
    assert [topic for topic, _ in after.intake.notes].count("scaled") == 1
    (note,) = [text for topic, text in after.intake.notes if topic == "scaled"]
    assert note.startswith(
        "input age standardised channel by channel: they are unscaled, such as channel 0 with mean 6"
    )
    assert standardise(data.arrays(BY_NAME, Y), always=False).intake == data.arrays(BY_NAME, Y).intake
