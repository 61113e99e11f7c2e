"""What tells the forms of data apart, what is said of them, and whether samples fit into memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from unskew.data.python_objects import check_instance, is_pair, is_sample
from unskew.data.readers.from_items import has_several_inputs, is_loader, loader_dataset
from unskew.data.samples import memory_budget
from unskew.data.samples.intake import Intake, abbreviate, prefix_notes, quantity
from unskew.errors import DataError

SAMPLES = TensorDataset(torch.zeros(8, 3), torch.arange(8))
X, Y = np.zeros((6, 3)), np.arange(6)


class OwnBatches(BatchSampler):
    """Batches of somebody's own."""


class Twice(SequentialSampler):
    def __iter__(self):
        yield from [0] * len(self)


def own_collate(rows):
    return rows[:1]


def default_collate(rows):  # called like torch's
    return rows[:1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"sampler": RandomSampler(SAMPLES)},
    ],
)
def test_a_loader_that_hands_out_all_samples_stands_for_its_set(options):
    loader = DataLoader(SAMPLES, **options)
    assert is_loader(loader)
    assert loader_dataset(loader) is SAMPLES


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"batch_sampler": OwnBatches(SequentialSampler(SAMPLES), 2, False)},
            r"a batch_sampler of its own \(OwnBatches\)",
        ),
        ({"sampler": Twice(SAMPLES)}, r"a sampler of its own \(Twice\)"),
        ({"sampler": RandomSampler(SAMPLES, replacement=True)}, r"a sampler of its own \(RandomSampler\)"),
        ({"sampler": RandomSampler(SAMPLES, num_samples=5)}, r"a sampler of its own \(RandomSampler\)"),
        ({"sampler": SequentialSampler(range(5))}, r"a sampler of its own \(SequentialSampler\)"),
        ({"collate_fn": own_collate}, r"a collate_fn of its own \(own_collate\)"),
        ({"collate_fn": default_collate}, r"a collate_fn of its own \(default_collate\)"),
    ],
)
def test_a_loader_that_changes_its_set_is_refused(options, says):
    with pytest.raises(DataError, match=f"E403 the DataLoader has {says}, which is not applied here"):
        loader_dataset(DataLoader(SAMPLES, **options))


def test_what_only_looks_like_a_loader_is_none():
    assert not is_loader(SimpleNamespace(dataset=SAMPLES))
    assert not is_loader(SimpleNamespace(batch_size=3))
    assert not is_loader(SAMPLES)


@pytest.mark.parametrize(
    ("given", "pair", "sample"),
    [
        ((X, Y), True, False),
        ([X, Y], True, False),
        ((X, np.zeros((6, 2))), True, False),
        ((X, X), False, False),  # two samples, or two rows
        ((X, np.arange(5)), False, False),
        ((Y, Y), False, False),
        ((X, list(Y)), False, False),
        ((X, Y, Y), False, False),
        (({"a": X}, Y), True, False),
        (({"a": X}, 1), False, True),
        (((X, Y), Y), True, False),
        ((X, 1), False, True),
        ((X, "cat"), False, True),
        ((3.0, 1), False, False),
        (((1.0, 2.0), 1), False, False),
        (((X, 2.0), 1), False, True),
        (None, False, False),
    ],
)
def test_pairs_of_arrays_and_samples_with_their_label_are_told_apart(given, pair, sample):
    assert (is_pair(given), is_sample(given)) == (pair, sample)


@pytest.mark.parametrize(
    ("x", "several"),
    [({"a": 1.0}, True), ((X, 1.0), True), ([X, X], True), ((1.0, 2.0), False), ((X,), False), (X, False)],
)
def test_a_row_of_numbers_is_one_input(x, several):
    assert has_several_inputs(x) == several


def test_a_class_is_not_a_set_of_it():
    class Mine(Dataset):
        pass

    check_instance(SAMPLES)
    with pytest.raises(
        DataError, match=r"E403 Mine is a class, not a set of samples; create it first: Mine\(\.\.\.\)"
    ):
        check_instance(Mine)


def test_what_is_remarked_is_remarked_once_and_in_order():
    intake = Intake(notes=(("note", "a"),)).with_notes(("left out", "b"), ("note", "a"), ("left out", "b"))
    assert intake.notes == (("note", "a"), ("left out", "b"))
    assert prefix_notes("input age", [("note", "far off")]) == [("note", "input age: far off")]
    assert [quantity(n, "file") for n in (0, 1, 2, 1200)] == ["0 files", "1 file", "2 files", "1,200 files"]
    assert abbreviate(["a", "b", "c"]) == "a, b, c"
    assert abbreviate(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert abbreviate(["a"] * 1203, 1) == "a and 1,202 more"
    assert abbreviate([]) == ""


def test_samples_fit_that_take_a_quarter_of_the_memory_and_no_more(monkeypatch):
    monkeypatch.setattr(memory_budget, "usable_memory", lambda: 4 * 4 * 10 * 6)
    assert memory_budget.float32_bytes(10, (2, 3)) == 240
    assert memory_budget.fits_memory(10, (2, 3))
    assert not memory_budget.fits_memory(10, (2, 3), other_bytes=1)
    assert not memory_budget.fits_memory(11, (2, 3))
    assert memory_budget.fits_memory(9, (2, 3), other_bytes=24)
