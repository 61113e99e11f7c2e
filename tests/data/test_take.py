"""Whatever a program gives as data is understood by `run` and `compare` alike, or refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    TensorDataset,
)
from torch.utils.data import Dataset as TorchDataset

import unskew
from unskew import data
from unskew.data.clients.federation import Federation
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UnskewError

SETTINGS = {"clients": 2, "rounds": 1, "epochs": 1, "skew": "iid"}


def rng(seed=0):
    return np.random.default_rng(seed)


X, Y = rng().normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
X_TEST, Y_TEST = X[:10] + 1, Y[:10]


class Series:
    """What a pandas column is to us."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def to_numpy(self):
        return self.values


class Frame:
    """What a pandas DataFrame is to us."""

    def __init__(self, columns):
        self.held = columns
        self.columns = list(columns)
        self.iloc = None

    def __getitem__(self, name):
        return Series(self.held[name])


class Pictures(TorchDataset):
    """Pairs of an image of Pillow's and its class."""

    classes = ("cat", "dog")
    transform = None

    def __init__(self, sizes=((9, 7),)):
        self.sizes = sizes

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return Image.new("RGB", self.sizes[i % len(self.sizes)], (255 * (i % 2), 0, 0)), i % 2


class Feature:
    def __init__(self, names=None):
        self.names = names


class Faces:
    """What a Dataset of Hugging Face is to us: features, column names, and rows as dictionaries."""

    def __init__(self, n=20):
        self.n, self.features = n, {"image": Feature(), "label": Feature(["sad", "glad"])}
        self.column_names = list(self.features)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"image": Image.new("L", (8, 8), 10 * i), "label": i % 2}


def taken(given, **more) -> Dataset:
    dataset = data.take(given, **more)
    assert isinstance(dataset, Dataset)
    return dataset


ONE = taken((X, Y, X_TEST, Y_TEST))
FORMS = {
    "tensors": (torch.tensor(X), torch.tensor(Y), torch.tensor(X_TEST), torch.tensor(Y_TEST)),
    "lists": (X.tolist(), Y.tolist(), X_TEST.tolist(), Y_TEST.tolist()),
    "torch": {
        "train": TensorDataset(torch.tensor(X), torch.tensor(Y)),
        "test": TensorDataset(torch.tensor(X_TEST), torch.tensor(Y_TEST)),
    },
    "subset": (
        ConcatDataset([Subset(TensorDataset(torch.tensor(X), torch.tensor(Y)), range(40))]),
        TensorDataset(torch.tensor(X_TEST), torch.tensor(Y_TEST)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_samples_is_the_same_set(form):
    """D5: tensors, lists, dictionaries, and torch Datasets hold what the arrays hold."""
    d = taken(FORMS[form])
    for name in ("x", "y", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(d, name), getattr(ONE, name))
    assert d.classes == ONE.classes


def test_run_gives_the_same_bits_for_every_form(tmp_path):
    """D5: arrays, a torch Dataset, and a pathlib.Path of an archive train to the same weights."""
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    forms = [(X, Y, X_TEST, Y_TEST), FORMS["torch"], tmp_path / "a.npz", str(tmp_path / "a.npz")]
    assert len({unskew.run("fedavg", form, **SETTINGS).digest for form in forms}) == 1


def test_images_of_a_torch_set_keep_their_classes():
    """D5: images of Pillow's, of one size, with the names of their classes; of several they are refused."""
    d = taken(Pictures())
    assert d.shape == (3, 7, 9)
    assert d.classes == ("cat", "dog")
    assert set(np.unique(d.x[:, 0][d.y == 1])) == {1.0}
    with pytest.raises(
        DataError, match=r"E403 Pictures: sample 0 is uint8 \[3, 7, 9\], sample 1 is uint8 \[3, 5, 5\]"
    ):
        taken(Pictures(((9, 7), (5, 5))))


def test_a_hugging_face_set_is_read_by_its_columns():
    """D5: rows as dictionaries, class names from the features, train and test as one; validation is told."""
    d = taken({"train": Faces(), "validation": Faces(4), "test": Faces(10)})
    assert (d.shape, d.classes, len(d.y_test)) == ((1, 8, 8), ("sad", "glad"), 10)
    assert d.intake
    assert ("left out", "validation: choose settings with validation=0.1") in d.intake.notes


@pytest.mark.parametrize("form", ["dict", "list", "words", "frames", "tests"])
def test_sets_of_clients_stay_divided(form):
    """D5: a list or dictionary of clients' sets makes each a client, with classes numbered together."""
    a, b = (X[:30], Y[:30]), (X[30:], Y[30:])
    given = {
        "dict": {"north": a, "south": b},
        "list": [a, TensorDataset(torch.tensor(b[0]), torch.tensor(b[1]))],
        "words": {"north": (a[0], np.array(["no", "yes"])[a[1]]), "south": (b[0], ["yes"] * 10)},
        "frames": {
            "north": Frame({"v": a[0][:, 0], "label": a[1]}),
            "south": Frame({"v": b[0][:, 0], "label": b[1]}),
        },
        "tests": {"north": (*a, *b), "south": (*b, *a)},
    }[form]
    federation = unskew.run("fedavg", given, rounds=1, epochs=1).federation
    assert federation.clients == 2
    assert federation.names == (("client-0", "client-1") if form == "list" else ("north", "south"))
    assert federation.natural
    sizes = (federation.sizes + federation.test.sizes).tolist()
    assert sizes == ([40, 40] if form == "tests" else [30, 10])
    assert federation.sizes[0] == (30 if form == "tests" else 24)
    if form == "words":
        assert federation.classes == ("no", "yes")
        assert federation.label_counts[1, 0] == 0


class Broken(Pictures):
    def __getitem__(self, i):
        raise OSError("no such image")


class Triples(Pictures):
    def __getitem__(self, i):
        return torch.zeros(3), torch.zeros(3), 1


class Growing(Pictures):
    def __getitem__(self, i):
        return torch.zeros(3 + i % 2), 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.zeros((4, 3)), r"an array of \[4, 3\] was given without labels; give \(x, y\)"),
        ((X, Y, X), r"3 arrays were given; give \(x, y\) or"),
        (([[1.0, 2.0], [3.0]], [0, 1]), r"sample 0 is \[2\], sample 1 is \[1\]; cut or pad"),
        ((Pictures(), [0, 1]), "give the test set|set of samples|E4"),
        (Broken(), "sample 0 failed: OSError: no such image"),
        (Triples(), r"sample 0 is 3 values; it should be a pair \(x, y\)"),
        (Growing(), r"sample 0 is .*\[3\], sample 1 is .*\[4\]"),
        (7, "cannot read a int as data: 7"),
        ([], "an empty list"),
        ({"a": (X, Y), "b": 3}, "b: cannot read a int as data: 3"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, r"samples of 'a' are \[4\], those of 'b' \[2\]"),
    ],
)
def test_what_is_no_data_is_one_short_sentence(given, says):
    """D5, D9: no traceback, and no message that prints an array."""
    with pytest.raises(UnskewError, match=says) as refused:
        unskew.run("fedavg", given, **SETTINGS)
    assert len(str(refused.value)) < 400


def test_a_federation_and_a_dataset_pass_as_they_are():
    """D5: what is understood already is not read again."""
    federation = unskew.run("fedavg", (X, Y), **SETTINGS).federation
    assert data.take(federation) is federation
    assert isinstance(federation, Federation)
    assert data.take(ONE) is ONE
    with pytest.raises(
        DataError, match=r"E403 site='client' was given, and a Federation is dealt out already"
    ):
        data.take(federation, site="client")
    with pytest.raises(DataError, match=r"E403 label='y' names a column, and these data come with"):
        data.take(ONE, label="y")
    with pytest.raises(DataError, match=r"E403 .*no column 'clinic'"):
        data.take(ONE, site="clinic")
    with pytest.raises(DataError, match="E403 label='y' and target='z' exclude each other"):
        data.take((X, Y), label="y", target="z")


TRAIN, TEST = (TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in ((X, Y), (X_TEST, Y_TEST)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((TRAIN, TEST, TEST), "3 parts is for cannot be told.*val"),
        (TensorDataset, r"TensorDataset is a class.*TensorDataset\(\.\.\.\)"),
        ({}, "an empty list was given"),
        ({"x": X, "y": Y}, r"an array of \[40, 4\] was given without labels; give \(x, y\)"),
        (
            (torch.tensor(X).to_sparse(), Y),
            r"sparse_coo tensor cannot be read as plain numbers; give x\.to_dense\(\)",
        ),
        (DataLoader(TRAIN, 8), r"a DataLoader returns batches; give its set, loader\.dataset"),
    ],
)
def test_what_a_loader_or_a_tuple_would_lose_is_refused(given, says):
    """The third set of a tuple and what a loader does to samples were ignored; the others were tracebacks."""
    with pytest.raises(DataError, match=f"E403 .*(?:{says})"):
        data.take(given)


@pytest.mark.parametrize(
    "given",
    [
        ((X, Y), (X_TEST, Y_TEST)),
        (TRAIN, (X_TEST, Y_TEST)),
    ],
)
def test_train_and_test_are_a_pair_of_any_sets(given):
    """((x, y), (x_test, y_test)) was a traceback."""
    taken = data.take(given)
    assert isinstance(taken, Dataset)
    assert np.array_equal(taken.x, X)
    assert np.array_equal(taken.x_test, X_TEST)


@pytest.mark.parametrize("factor", [255, 1 / 255])
def test_a_test_set_on_another_scale_is_noted(factor):
    """A test set of 0 to 255 beside training samples of 0 to 1 was scored without a word."""
    for given, noted in (
        ((X, Y, X_TEST * np.float32(factor), Y_TEST), True),
        ((X, Y, X_TEST, Y_TEST), False),
    ):
        taken = data.take(given)
        assert isinstance(taken, Dataset)
        assert taken.intake
        assert any("are both scaled alike?" in text for _, text in taken.intake.notes) is noted
