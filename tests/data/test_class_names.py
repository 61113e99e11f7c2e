"""Sets that number their classes differently: labels are matched by the classes' names, and never by their
numbers.

Likely mistakes: a test folder without one class, clients whose folders hold other classes, Parquet files with
other names, and a set of Hugging Face with two columns of classes.
"""

import json

import numpy as np
import pytest

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


def test_names_that_do_not_say_which_class_is_meant_are_refused():
    crane, other = (
        Folder(words("crane", "ant"), ["crane", "ant", "crane"]),
        Folder(words("crane", "ant"), ["crane", "ant"]),
    )
    assert data.take((crane, crane)).classes == ("crane", "ant", "crane")
    with pytest.raises(
        DataError,
        match="E404 the classes of 'train' and of others differ; give all sets the same, each name once",
    ):
        data.take((crane, other))
    with pytest.raises(DataError, match="E404 'test' has labels beside the numbers of its 2 classes, 0 to 1"):
        data.take({"train": other, "test": {"x": X, "y": np.arange(60) % 2 * 2, "classes": ("a", "b")}})


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
