"""Sets that number their classes differently: labels are matched by the classes' names, and never by their
numbers.

Likely mistakes: a test folder without one class, clients whose folders hold other classes, Parquet files with
other names, and a set of Hugging Face with two columns of classes.
"""

import json

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from unskew import data
from unskew.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.random((60, 1, 4, 4)).astype(np.float32)


class Folder:
    """What torchvision's ImageFolder is to us: classes by name, and labels by number."""

    def __init__(self, words, classes):
        self.words, self.classes = words, classes

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return X[i], self.classes.index(self.words[i])


class Hub:
    """What a Dataset of Hugging Face is to us: a shape, features with names, and rows as dictionaries."""

    def __init__(self, columns, names):
        self.columns, self.shape = columns, (len(X), 1 + len(columns))
        self.features = {name: type("ClassLabel", (), {"names": names[name]})() for name in columns}

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return {"x": X[i], **{name: int(values[i]) for name, values in self.columns.items()}}


class Table(Hub):
    """A Dataset of Hugging Face whose columns hold one value a row."""

    def __init__(self, columns, names=None):
        self.columns, self.column_names = columns, list(columns)
        kinds = {name: "ClassLabel" if name in (names or {}) else "Value" for name in columns}
        self.features = {
            name: type(kind, (), {"names": (names or {}).get(name)})() for name, kind in kinds.items()
        }

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]


def words(*kinds, n=60):
    return [kinds[i % len(kinds)] for i in range(n)]


def named(dataset, y):
    return [dataset.classes[int(label)] for label in y]


def told(dataset):
    return " ".join(text for _, text in dataset.intake.notes)


def test_a_test_set_that_lacks_a_class_is_matched_by_names():
    of_train, of_test = words("bird", "cat", "dog"), words("cat", "dog", n=20)
    dataset = data.take((Folder(of_train, ["bird", "cat", "dog"]), Folder(of_test, ["cat", "dog"])))
    assert named(dataset, dataset.y) == of_train
    assert named(dataset, dataset.y_test) == of_test
    assert "matched by their names" in told(dataset)
    same = data.take((Folder(of_train, ["bird", "cat", "dog"]), Folder(of_train, ["bird", "cat", "dog"])))
    assert "matched by their names" not in told(same)


def test_clients_and_their_common_test_set_are_matched_by_names():
    clients = {
        "north": Folder(words("cat", "dog"), ["cat", "dog"]),
        "south": Folder(words("dog", "ant"), ["ant", "dog"]),
    }
    dataset = data.take((clients, Folder(words("ant", n=10), ["ant"])))
    assert dataset.classes == ("cat", "dog", "ant")
    assert named(dataset, dataset.y) == [*words("cat", "dog"), *words("dog", "ant")]
    assert named(dataset, dataset.y_test) == words("ant", n=10)


def test_one_hot_rows_go_to_the_columns_of_their_classes():
    one_hot = {"x": X, "y": np.eye(2)[np.arange(60) % 2], "classes": ("dog", "ant")}
    dataset = data.take(
        {
            "north": Folder(words("ant", "dog"), ["ant", "dog"]),
            "south": Folder(words("ant", "dog"), ["ant", "dog"]),
        }
    )
    assert dataset.classes == ("ant", "dog")
    mixed = data.take({"train": one_hot, "test": {**one_hot, "classes": ("ant", "dog")}})
    assert named(mixed, mixed.y) == words("dog", "ant")
    assert named(mixed, mixed.y_test) == words("ant", "dog")


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_names_of_classes_beside_arrays_come_in_any_list(kind):
    """A list, or an array, of names of several clients ended in a TypeError, as examples/shakespeare.py gave
    one."""
    one = {"x": X, "y": np.arange(60) % 2, "classes": kind(["dog", "ant"])}
    assert data.take(one).classes == ("dog", "ant")
    dataset = data.take({"north": one, "south": {**one, "classes": kind(["ant", "dog"])}})
    assert dataset.classes == ("dog", "ant")
    assert named(dataset, dataset.y[60:62]) == ["ant", "dog"]
    with pytest.raises(DataError, match=r"E404 classes lists the names of all classes, .*; it is 2\."):
        data.take({**one, "classes": 2})


def test_names_that_do_not_say_which_class_is_meant_are_refused():
    crane, other = (
        Folder(words("crane", "ant"), ["crane", "ant", "crane"]),
        Folder(words("crane", "ant"), ["crane", "ant"]),
    )
    assert data.take((crane, crane)).classes == ("crane", "ant", "crane")
    with pytest.raises(
        DataError,
        match="E404 the classes of 'train' and of others differ, and two of them are called 'crane'",
    ):
        data.take((crane, other))
    with pytest.raises(
        DataError, match="E404 the label of sample 1 of 'test' is 2; its 2 classes need labels from 0 to 1"
    ):
        data.take({"train": other, "test": {"x": X, "y": np.arange(60) % 2 * 2, "classes": ("a", "b")}})


def test_joined_sets_with_other_classes_are_told():
    one, other = Folder(words("bird", "cat"), ["bird", "cat"]), Folder(words("cat", "dog"), ["cat", "dog"])
    assert "joined sets number their classes differently (bird, cat; cat, dog)" in told(
        data.take(ConcatDataset([one, other]))
    )
    dataset = data.take(Subset(ConcatDataset([one, one]), range(80)))
    assert dataset.classes == ("bird", "cat")
    assert "joined sets" not in told(dataset)


def test_a_set_with_two_columns_of_classes_has_the_names_of_its_labels():
    names = {"fine_label": [f"fine {i}" for i in range(10)], "coarse_label": ["plants", "animals"]}
    hub = Hub({"fine_label": np.arange(60) % 10, "coarse_label": np.arange(60) % 2}, names)
    assert data.take(hub, label="coarse_label").classes == ("plants", "animals")
    assert data.take(hub, label="fine_label").classes == tuple(names["fine_label"])


def test_parquet_files_that_number_classes_differently_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for part, names in (("one", ["cat", "dog"]), ("two", ["dog", "cat"])):
        notes = {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})}
        table = pyarrow.table({"a": RNG.random(60), "label": np.arange(60) % 2}).replace_schema_metadata(
            notes
        )
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    with pytest.raises(
        DataError, match=r"E403 .*one.parquet and .*two.parquet number the classes of column 'label' diff"
    ):
        data.read(str(tmp_path))


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_label_that_is_missing_is_named_where_classes_have_names(missing):
    folder = Folder(words("cat", "dog"), ["cat", "dog"])
    samples = [(x, missing if i == 7 else y) for i, (x, y) in enumerate(folder[i] for i in range(60))]
    listed = type("Listed", (list,), {"classes": ["cat", "dog"]})(samples)
    with pytest.raises(DataError, match=r"E404 .*sample 7 has no label"):
        data.take({"train": Subset(listed, range(60))})


def test_what_a_set_raises_is_one_sentence():
    class Short(Folder):
        def __len__(self):
            raise NotImplementedError

    with pytest.raises(DataError, match="E403 a Short has no length"):
        data.take(Short(words("cat", "dog"), ["cat", "dog"]))
    with pytest.raises(DataError, match=r"E404 Subset: the label of sample 0 is .., that of sample 1 .2."):
        data.take(Subset([(X[0], np.array(0)), (X[1], np.array([0, 1]))], range(2)))
    with pytest.raises(DataError, match="E403 Subset: sample 1 is None"):
        data.take(Subset([(X[0], 0), (None, 1)], range(2)))


def test_samples_that_differ_from_reading_to_reading_are_told():
    class Random(Folder):
        def __getitem__(self, i):
            return X[i] + RNG.random() * (i > 30), i % 2

    told_of = "every sample was read once: what a random transform did to it stays"
    assert told_of in told(data.take(Random(words("cat", "dog"), ["cat", "dog"])))
    assert told_of not in told(data.take(Folder(words("cat", "dog"), ["cat", "dog"])))


def test_bytes_of_images_among_fractions_are_refused():
    """They were taken as numbers from 0 to 255 beside others from 0 to 1."""
    mixed = [((x * 255).astype(np.uint8) if i == 9 else x, i % 2) for i, x in enumerate(X)]
    with pytest.raises(
        DataError,
        match="E403 Subset: sample 0 is float32, sample 9 is uint8, and whole numbers of images are",
    ):
        data.take(Subset(mixed, range(60)))


def test_what_holds_no_numbers_is_one_sentence():
    import torch

    y = np.arange(60) % 2
    for x, says in (
        (np.zeros((60, 0)), r"E403 arrays: x is \[60, 0\], so that a sample holds no number"),
        (
            torch.zeros(60, 4, device="meta"),
            "E403 a tensor that cannot be read was given: Cannot copy out of meta tensor",
        ),
    ):
        with pytest.raises(DataError, match=says):
            data.take((x, y))


def test_numbers_that_are_no_classes_are_named():
    y = np.arange(60, dtype=np.uint64) % 2
    y[7] = 1 << 63
    with pytest.raises(
        DataError, match="E404 arrays: the label of sample 7 is 9223372036854775808, which is no number of a"
    ):
        data.take((X, y))
    with pytest.raises(
        DataError, match="E404 arrays: all labels are below 0, such as -1; number classes from 0"
    ):
        data.take((X, np.full(60, -1)))


def test_a_set_of_plain_columns_is_a_table_whose_numbers_are_words():
    """It was asked for the input of each row, and refused."""
    ages, wards, states = (
        [40 + i % 17 for i in range(60)],
        [i % 3 for i in range(60)],
        [i % 2 for i in range(60)],
    )
    names = {"ward": ["north", "east", "west"], "label": ["well", "ill"]}
    given = Table({"age": ages, "ward": wards, "label": states}, names)
    dataset = data.take(given)
    assert dataset.shape == (4,)
    assert dataset.classes == ("ill", "well")
    assert "'ward' (3 kinds)" in told(dataset)
    both = np.concatenate([dataset.x, dataset.x_test]), np.concatenate([dataset.y, dataset.y_test])
    rows = {(int(x[0]), int(np.argmax(x[1:])), dataset.classes[y]) for x, y in zip(*both)}
    order = ("east", "north", "west")
    assert rows == {
        (a, order.index(names["ward"][w]), names["label"][s]) for a, w, s in zip(ages, wards, states)
    }
    assert data.take(given, target="age").target.name == "age"
    with pytest.raises(DataError, match=r"E404 .*column 'label' has no label in row 7"):
        data.take(Table({"age": ages, "label": [None if i == 7 else i % 2 for i in range(60)]}, names))
