"""Sets that number their classes differently: labels are matched by the classes' names, and never by their
numbers.
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
