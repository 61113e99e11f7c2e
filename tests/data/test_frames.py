"""Several clients or parts: a column of numbers of their DataFrames means one column and one word, labels are
matched by the names of classes, and no row gets lost.
"""

import numpy as np
import pytest

import unskew
from unskew import data
from unskew.data import python_objects
from unskew.errors import DataError

RNG = np.random.default_rng(0)
N = 60
A, Y = RNG.random(N), np.arange(N) % 2


class Frame:
    """What a pandas DataFrame is to us; repeated names give a table again."""

    iloc = None

    def __init__(self, columns, names=None):
        self.held, self.columns = columns, names or list(columns)

    def __getitem__(self, name):
        return np.asarray(self.held[name])


def table(words, **more):
    return Frame({"a": A, "c": [words[i % len(words)] for i in range(N)], "label": Y, **more})


def told(dataset):
    return " ".join(text for _, text in dataset.intake.notes)


def one_hot(words, kinds):
    return np.array([[words[i % len(words)] == kind for kind in kinds] for i in range(N)], np.float32)


def test_words_mean_the_same_column_in_training_and_test_and_no_row_is_left_out():
    """A fifth of each table was held out and lost, and `y`, `z` of the test table were given the column of
    `x`, `y`."""
    dataset = data.take((table("xy"), table("yz")))
    assert np.array_equal(dataset.x, np.c_[A.astype(np.float32), one_hot("xy", "xyz")])
    assert np.array_equal(dataset.x_test, np.c_[A.astype(np.float32), one_hot("yz", "xyz")])
    assert np.array_equal(dataset.y_test, Y)
    assert dataset.intake.form["columns"] == [["a", []], ["c", ["x", "y", "z"]]]
    shuffled = Frame({"label": Y, "c": table("xy")["c"], "a": A})
    assert np.array_equal(
        data.take({"train": table("xy"), "test": shuffled}).x_test, data.take((shuffled, shuffled)).x[:, ::-1]
    )


def test_clients_tables_are_read_together():
    dataset = data.take({"north": table("xy"), "south": table("zy", label=1 - Y)})
    order = np.argsort(np.r_[dataset.columns["client"], dataset.test_columns["client"]], kind="stable")
    x, y = np.r_[dataset.x, dataset.x_test][order], np.r_[dataset.y, dataset.y_test][order]
    expected = np.r_[np.c_[A, one_hot("xy", "xyz"), Y], np.c_[A, one_hot("zy", "xyz"), 1 - Y]].astype(
        np.float32
    )
    assert sorted(map(bytes, np.c_[x, y].astype(np.float32))) == sorted(map(bytes, expected))
    tested = data.take(([table("xy"), table("yz")], table("zz")))
    assert np.array_equal(tested.x_test[:, 1:], one_hot("z", "xyz"))
    assert len(tested.y) == 2 * N
    with pytest.raises(
        DataError, match="E403 'south' has no column 'c', which 'north' has; it has: a, label"
    ):
        data.take({"north": table("xy"), "south": Frame({"a": A, "label": Y})})


def test_tables_in_files_whose_words_differ_are_refused(tmp_path):
    for name, words in (("north", "xy"), ("south", "yz"), ("same", "xy")):
        rows = [f"{a:.6f},{c},{y}" for a, c, y in zip(A, table(words)["c"], Y)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,c,label", *rows]) + "\n")
    paths = {name: str(tmp_path / f"{name}.csv") for name in ("north", "south", "same")}
    with pytest.raises(
        DataError,
        match=(
            r"E403 the tables of 'north' and 'south' .*: 'c' with the words x, y and 'c' with the words y, z;"
            r" give"
        ),
    ):
        data.take({"north": paths["north"], "south": paths["south"]})
    with pytest.raises(DataError, match="E403 the tables of 'train' and 'test'"):
        data.take({"train": paths["north"], "test": paths["south"]})
    dataset = data.take({"north": paths["north"], "same": paths["same"]})
    assert dataset.intake.form["columns"] == [["a", []], ["c", ["x", "y"]]]


def test_a_set_of_which_a_fifth_was_held_out_is_whole_where_it_is_a_part(tmp_path):
    """Of a path, or of `unskew.data.arrays`, that was given as training or test part, a fifth was lost."""
    x, x_test = RNG.random((2, N, 1, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    np.savez(tmp_path / "b.npz", x=x_test, y=1 - Y)
    np.savez(tmp_path / "own.npz", x=x, y=Y, x_test=x_test, y_test=Y)
    paths = {name: str(tmp_path / f"{name}.npz") for name in ("a", "b", "own")}
    for train, test in ((paths["a"], paths["b"]), (data.arrays(x, Y), data.arrays(x_test, 1 - Y))):
        dataset = data.take({"train": train, "test": test})
        for part, whole, labels in ((dataset.x, x, dataset.y), (dataset.x_test, x_test, dataset.y_test)):
            order = [int(np.flatnonzero((whole == row).all((1, 2, 3)))[0]) for row in part]
            assert sorted(order) == list(range(N))
            assert np.array_equal(labels, (Y if whole is x else 1 - Y)[order])
    with pytest.raises(
        DataError, match="E403 'train' brings a test set of its own, and train and test are given apart"
    ):
        data.take({"train": paths["own"], "test": paths["b"]})
    clients = data.take(({"north": (x, Y), "south": (x, Y)}, data.arrays(x_test, Y)))
    assert (len(clients.y), len(clients.y_test)) == (2 * N, N)


class Indexed(Frame):
    """The same with pandas' index."""

    def __init__(self, columns, index):
        super().__init__(columns)
        self.index = Index(index)


class Index(list):
    def equals(self, other):
        return self == other


class Named(np.ndarray):
    """What a pandas Series is to us."""


def series(values, name, index):
    labels = np.asarray(values).view(Named)
    labels.name, labels.index = name, Index(index)
    return labels


def test_a_table_with_its_labels_beside_it():
    """`(X, y)` as scikit-learn takes them was refused."""
    features = {"a": A, "c": table("xy")["c"]}
    dataset = data.take((Indexed(features, range(N)), series(Y, "sick", range(N))))
    assert dataset.intake.form["columns"] == [["a", []], ["c", ["x", "y"]]]
    assert "from the column 'sick'" in told(dataset)
    tested = data.take((Frame(features), Y, Frame({"a": A, "c": table("zx")["c"]}), 1 - Y))
    assert np.array_equal(tested.x_test[:, 1:], one_hot("zx", "xyz"))
    assert np.array_equal(tested.y_test, 1 - Y)
    assert data.take((Frame(features), A * 3), target="price").target.name == "price"
    for x, y, more, says in (
        (
            Indexed(features, range(N)),
            series(Y, "sick", range(1, N + 1)),
            {},
            "E403 x: x and 'sick' have different indexes",
        ),
        (Frame(features), Y[1:], {}, r"E403 x: the table has 60 rows, and 'label' is \[59\]"),
        (Frame(features), series(Y, "a", range(N)), {}, "E403 x: column 'a' is in the table, too"),
        (Frame(features), Y, {"label": "a"}, "E403 label='a' names a column, and y is given as well"),
    ):
        with pytest.raises(DataError, match=says):
            data.take((x, y), **more)


@pytest.mark.parametrize("training", [("a", "c", "label"), ("label", "c", "a")])
def test_a_model_finds_the_columns_of_a_table_by_name(training):
    """In another order, numbers were taken for other columns, and predictions were wrong without a word."""
    given = table("xyz", b=A[::-1])
    result = unskew.run(
        "fedavg", Frame({name: given[name] for name in ("b", *training)}), clients=2, rounds=1, workers=1
    )
    asked = {name: given[name][:7] for name in "abc"}
    once = result.predict_proba(Frame(asked))
    assert np.array_equal(once, result.predict_proba(Frame(dict(reversed(asked.items())))))
    columns = [name for name in ("b", *training) if name != "label"]
    rows = np.concatenate(
        [one_hot("xyz", "xyz")[:7] if n == "c" else asked[n][:, None] for n in columns], axis=1
    )
    assert np.array_equal(once, result.predict_proba(rows.astype(np.float32)))
    with pytest.raises(DataError, match="E403 predict has no column 'b', which the model reads; it has"):
        result.predict(Frame({"a": A, "c": given["c"]}))
    with pytest.raises(DataError, match="E405 predict: column 'c' holds 'v' in row 0"):
        result.predict(Frame({"a": A[:1], "b": A[:1], "c": ["v"]}))


def test_test_rows_given_apart_belong_to_the_sites_that_they_name():
    """Sites were left without test rows, so that neither the mean over sites nor the worst one was there."""
    where = np.array(["north", "south", "east"])[np.arange(N) % 3]
    train = table("xy", site=np.where(where == "east", "south", where))
    asked = table("yx", site=where)
    apart = ((train, asked), {"train": train, "test": asked})
    beside = [Frame({name: one.held[name] for name in ("a", "c", "site")}) for one in (train, asked)]
    for given in (*apart, (beside[0], Y, beside[1], Y)):
        dataset, settings = python_objects.settings_of(given, site="site")
        assert settings["skew"] == "column:site"
        federation = data.build(dataset, "column:site", 2, np.random.default_rng(0), np.random.default_rng(0))
        rows = {federation.name_of(k): federation.test[k].tolist() for k in range(2)}
        assert rows == {name: np.flatnonzero(where == name).tolist() for name in ("north", "south")}


X = RNG.random((N, 1, 4, 4)).astype(np.float32)


class Folder:
    """What torchvision's ImageFolder is to us: classes by name, and labels by number."""

    def __init__(self, words, classes):
        self.words, self.classes = words, classes

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return X[i], self.classes.index(self.words[i])


def words(*kinds, n=N):
    return [kinds[i % len(kinds)] for i in range(n)]


def named(dataset, y):
    return [dataset.classes[int(label)] for label in y]


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
