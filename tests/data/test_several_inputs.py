"""A sample of several inputs is refused in one sentence: inputs of one shape are never stacked into one unnoticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from unskew import data
from unskew.data.dataset import Dataset
from unskew.errors import DataError


class Samples(TorchDataset):
    """Forty samples of which each has the same input."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.x, i % 2


SCAN, AGE = np.ones((1, 8, 8), np.float32), torch.ones(3)
PICTURE = Image.new("L", (8, 8))


@pytest.mark.parametrize(
    "x", [(SCAN, SCAN), [SCAN, SCAN], (SCAN, AGE), (AGE, AGE), (AGE, 1.0), (PICTURE, PICTURE)], ids=range(6)
)
def test_a_tuple_of_arrays_is_several_inputs(x):
    with pytest.raises(
        DataError, match=r"E403 .*: sample 0 has 2 inputs, a (tuple|list) of arrays, and models take one"
    ):
        data.take(Samples(x))


@pytest.mark.parametrize("x", [(SCAN, SCAN), (SCAN, AGE)], ids=range(2))
def test_so_is_one_in_a_list_of_samples(x):
    with pytest.raises(DataError, match="E403 list: sample 0 has 2 inputs, a tuple of arrays"):
        data.take([(x, i % 2) for i in range(40)])


def test_inputs_by_name_are_listed():
    with pytest.raises(DataError, match=r"E403 list: sample 0 has inputs by name, \['image', 'age'\]"):
        data.take([({"image": SCAN, "age": AGE}, i % 2) for i in range(40)])
    with pytest.raises(DataError, match=r"E403 Samples: sample 0 has inputs by name, \['image', 'age'\]"):
        data.take(Samples({"image": SCAN, "age": AGE}))


@pytest.mark.parametrize("x", [(1.0, 2.0, 3.0), [1, 2, 3], tuple(torch.ones(3)), AGE], ids=range(4))
def test_a_row_of_numbers_is_one_input(x):
    taken = data.take(Samples(x))
    taken = taken[0] if isinstance(taken, tuple) else taken
    assert isinstance(taken, Dataset)
    assert taken.x.shape[1:] == (3,)
