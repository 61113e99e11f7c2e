"""Partitions, sets and availability: exact where they promise to be, and always ending."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

import unskew
from unskew import data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data import data_overview
from unskew.data.clients.availability import Availability
from unskew.data.clients.partition import Index
from unskew.data.python_objects import settings_of
from unskew.data.samples.dataset import Dataset, validation_of
from unskew.data.skew import deal_tests, partition
from unskew.errors import DataError
from unskew.runs.resolve import federation_of
from unskew.runs.run_folder import fingerprint


def rng(seed=0):
    return np.random.default_rng(seed)


Y = rng(1).integers(0, 6, 1200)


def covers(index: Index, n: int) -> bool:
    return sorted(index.rows.tolist()) == list(range(n))


@pytest.mark.parametrize(
    "skew",
    [
        "iid",
        "dirichlet:0.1",
        "dirichlet:5",
        "dirichlet:0.1,groups=2",
        "dirichlet:0.1,groups=2,contiguous",
        "classes:2",
        "classes:6",
    ],
)
def test_partitions_deal_every_row_to_exactly_one_client(skew):
    index = partition(skew, Y, 12, rng())
    assert len(index) == 12
    assert covers(index, len(Y))
    again = partition(skew, Y, 12, rng())
    assert np.array_equal(index.rows, again.rows)
    assert not np.array_equal(index.rows, partition(skew, Y, 12, rng(5)).rows)


def counts(index):
    return np.stack([np.bincount(Y[r], minlength=6) for r in index])


def test_quantity_skew_owns_q_classes_and_always_class_i_mod_c():
    held = counts(partition("classes:2", Y, 18, rng())) > 0
    assert (held.sum(1) == 2).all()
    assert all(held[k, k % 6] for k in range(18))
    owners = held.sum(0)
    sizes = counts(partition("classes:2", Y, 18, rng()))
    for c in range(6):  # a class is split evenly among its owners
        mine = sizes[held[:, c], c]
        assert mine.max() - mine.min() <= 1
        assert mine.sum() == (c == Y).sum()
    assert owners.min() >= 3


def test_dirichlet_balance_step_keeps_full_clients_from_getting_more():
    """A client at N/K or above when a class is dealt gets none of it, so nobody exceeds N/K by more than a
    class."""
    for seed in range(5):
        sizes = partition("dirichlet:0.3,min=1", Y, 6, rng(seed)).sizes
        assert sizes.max() < len(Y) / 6 + np.bincount(Y).max()


@pytest.mark.parametrize(("n", "K"), [(20_000, 400), (900, 300)])
def test_dirichlet_ends_with_enough_for_everybody(n, K):
    index = partition("dirichlet:0.1", rng(3).integers(0, 10, n), K, rng())
    assert covers(index, n)
    assert index.sizes.min() >= 3


def test_a_minimum_that_cannot_be_met_names_the_feasible_one():
    with pytest.raises(DataError, match=r"Feasible: min=4"):
        partition("dirichlet:0.1,min=10", Y, 300, rng())
    with pytest.raises(DataError, match=r"Feasible: samples=12"):
        partition("iid", Y, 100, rng(), samples=50)


def test_pathological_gives_equal_parts_and_wraps_round():
    index = partition("pathological:2x50", Y, 30, rng())
    assert (index.sizes == 100).all()
    assert ((counts(index) > 0).sum(1) == 2).all()
    assert all(len(set(r.tolist())) == 100 for r in index)  # no row twice at one client
    assert len(set(index.rows.tolist())) < 3000  # but shared between clients: 30 x 100 of 1200


@pytest.mark.parametrize("clients", [3, 4, 30])
def test_pathological_deals_every_row_if_there_is_a_place_for_every_class(clients):
    for seed in range(20):
        index = partition("pathological:2", Y, clients, rng(seed))
        assert covers(index, len(Y))
        assert ((counts(index) > 0).sum(1) == 2).all()


def test_a_federation_names_classes_that_no_client_holds_and_clients_without_samples():
    x, y = rng().random((110, 3)), np.arange(110) % 10
    made = data.arrays(x[:100], y[:100], x[100:], y[100:])
    fed = data.build(made, "pathological:2", 2, rng(), rng())
    lacking = sorted(set(range(10)) - set(fed.y[fed.train.rows].tolist()))
    assert len(lacking) == 6
    texts = data_overview.partition_warnings(fed)
    assert f"no client holds class '{lacking[0]}', " in texts[0]
    assert "and 3 more: 60 of 100 training samples are left out" in texts[0]
    assert "has 6 samples of them" in texts[0]
    assert texts[0] in data_overview.terminal(fed)
    with pytest.warns(UserWarning, match="no client holds class"):
        unskew.run("fedavg", fed, rounds=1, model="mlp")
    whole = data.build(made, "pathological:2", 5, rng(), rng(), validation=0.1)
    assert not data_overview.partition_warnings(whole)
    rows = [*(whole.train[k] for k in range(4)), np.zeros(0, np.int64)]
    (text,) = data_overview.partition_warnings(dataclasses.replace(whole, train=Index.of(rows)))
    assert text == "1 client without samples: they receive the model and send nothing"


def test_columns_make_natural_clients_with_their_own_test_rows():
    x, y = rng().random((90, 3)), rng().integers(0, 2, 90)
    made = data.arrays(x, y, columns={"site": np.repeat([7, 3, 5], 30)}, test=0.2)
    fed = data.build(made, "column:site", 1, rng(), rng())
    assert fed.clients == 3
    assert fed.names == ("site-3", "site-5", "site-7")
    assert fed.natural
    assert all((made.test_columns["site"][fed.test[k]] == s).all() for k, s in enumerate((3, 5, 7)))
    with pytest.raises(DataError, match=r"no column 'sit'.*Did you mean 'site'"):
        data.build(made, "column:sit", 1, rng(), rng())


def test_test_rows_are_dealt_in_the_clients_proportions():
    held = np.array([[30, 0, 0], [10, 20, 0], [0, 60, 0]])
    y = np.repeat([0, 1, 2], [40, 80, 50])
    dealt = deal_tests(y, held, rng())
    got = np.stack([np.bincount(y[r], minlength=3) for r in dealt])
    assert got.tolist() == [[30, 0, 0], [10, 20, 0], [0, 60, 0]]
    assert len(set(dealt.rows.tolist())) == 120  # nobody trains on class 2, so nobody is tested on it


def test_digits_are_always_there_and_split_the_same():
    one, two = data.read("digits"), data.read("digits")
    assert one.x.shape == (1437, 1, 8, 8)
    assert np.array_equal(one.x_test, two.x_test)
    assert np.bincount(one.y_test).min() >= 34
    standard = one.standardised().x
    assert abs(standard.mean()) < 0.01
    assert abs(standard.std() - 1) < 0.01


def tiny_clothes(folder, n):
    """Write a `fashion_mnist` of n training and 30 test images."""
    x, y = rng(0).integers(0, 256, (n + 30, 28, 28)).astype(np.uint8), np.arange(n + 30) % 10
    parts = {"x_train": x[:n], "x_test": x[n:], "y_train": y[:n], "y_test": y[n:]}
    np.savez_compressed(folder / "fashion_mnist.npz", **parts, classes=np.array([*"abcdefghij"]))


@pytest.fixture
def clothes(tmp_path, monkeypatch):
    tiny_clothes(tmp_path, 60)
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    return {"clients": 3, "samples": 8, "rounds": 1, "epochs": 1, "batch": 4, "model": "mlp"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"samples": None, "test_samples": 12},
        {"skew": "pathological:5x5", "normalise": "none"},
        {"skew": "iid+brightness:0.2"},
        {"validation": 0.2},
        {"method": "ccvr"},
        {"method": "centralised"},
    ],
)
def test_images_of_a_named_set_train_to_the_bits_of_their_array(clothes, options):
    options = {"method": "fedavg", **clothes, **options}
    named, array = (unskew.run(data=d, **options) for d in ("fashion_mnist", data.read("fashion_mnist")))
    assert named.digest == array.digest
    assert named.scores() == array.scores()


def test_a_run_keeps_the_images_that_clients_hold_and_reads_others_again(clothes, monkeypatch):
    settings = Settings(data="fashion_mnist", **clothes)
    whole = federation_of(settings, Method(), data.read("fashion_mnist"))
    some, held = federation_of(settings, Method()), np.unique(whole.train.rows)
    assert fingerprint(some) == fingerprint(federation_of(settings, Method()))
    assert fingerprint(some) != fingerprint(federation_of(settings.replace(partition_seed=1), Method()))
    monkeypatch.delenv("UNSKEW_DATA")
    assert np.array_equal(some.x[held[::-1]], whole.x[held[::-1]])
    with pytest.raises(DataError, match="E402"):
        some.x[: len(whole.x)]
    monkeypatch.undo()
    assert np.array_equal(some.x_test[:], whole.x_test)


def test_missing_and_damaged_sets_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    with pytest.raises(DataError, match=r"E402 .*UNSKEW_DATA, which is not set"):
        data.read("uci_har")
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"E402 there is no .*uci_har.npz"):
        data.read("uci_har")
    np.savez(tmp_path / "whole.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 0, 1]))
    blob = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "uci_har.npz").write_bytes(blob[: len(blob) // 2])
    with pytest.raises(DataError, match=r"E401 .*uci_har.npz cannot be read as a NumPy archive"):
        data.read("uci_har")
    np.savez(tmp_path / "uci_har.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="E401"):
        data.npz(tmp_path / "uci_har.npz")


def seen(spec, K=200, rounds=50):
    who = Availability.parse(spec)
    return [who.who(t, K, lambda r: rng(r)) for t in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("spec", "mean"),
    [
        ("full", 200),
        ("sample:0.1", 20),
        ("sample:7", 7),
        ("bernoulli:0.2", 40),
        ("drop:0.25", 150),
        ("sample:20,drop:0.5", 10),
        ("clustered:0.9-0.1", 100),
    ],
)
def test_availability_has_the_stated_mean(spec, mean):
    assert np.mean([len(a.answered) for a in seen(spec)]) == pytest.approx(mean, rel=0.1)


def test_deadline_quorum_and_redraw():
    found = seen("full,deadline:1")
    assert np.mean([len(a.answered) for a in found]) == pytest.approx(100, rel=0.1)  # the median time is 1
    assert all(len(a.late) + len(a.answered) == 200 for a in found)
    assert all(len(a.answered) == 0 or len(a.answered) >= 45 for a in seen("bernoulli:0.2,quorum:45"))
    assert all(len(a.answered) for a in seen("bernoulli:0.01,redraw", K=10))
    assert any(not len(a.answered) for a in seen("bernoulli:0.01", K=10))


def test_feature_skew_gives_every_client_its_own_view_and_leaves_the_set_alone():
    dataset = data.read("digits")
    plain, dim = (data.build(dataset, skew, 4, rng(1), rng(2)) for skew in ("iid", "iid+brightness:0.3"))
    for k in range(4):
        mine, seen = plain.x[plain.train[k]], dim.x[dim.train[k]]
        level = 2 * ((k + 0.5) * (5**0.5 - 1) / 2 % 1) - 1
        assert np.allclose(seen, np.clip(mine + 0.3 * level, 0, 1), atol=1e-6)
        assert np.array_equal(plain.y[plain.train[k]], dim.y[dim.train[k]])
    assert (dataset.x.min(), dataset.x.max()) == (0, 1)


def test_feature_skew_works_in_natural_units_under_standardisation():
    dataset = data.read("digits")
    raw = data.build(dataset, "iid+gamma:0.5", 3, rng(1), rng(2))
    done = data.build(dataset.standardised(), "iid+gamma:0.5", 3, rng(1), rng(2))
    assert np.allclose(done.x, (raw.x - 0.3053) / 0.3760, atol=1e-5)


def test_validation_holds_out_of_every_class_and_domain_and_puts_the_test_set_away():
    rng = np.random.default_rng(0)
    y, domain = np.tile(np.arange(4), 50), np.repeat([0, 1], 100)
    x = rng.random((200, 3)).astype(np.float32)
    made = Dataset("d", x, y, x[:5] + 9, y[:5], tuple("abcd"), {"domain": domain}, {"domain": domain[:5]})
    held = validation_of(made, 0.2)
    assert (len(held.y), len(held.y_test)) == (160, 40)
    for column, values in ((held.y_test, range(4)), (held.test_columns["domain"], range(2))):
        assert set(np.bincount(column).tolist()) == {40 // len(values)}
    assert (
        np.bincount(4 * held.test_columns["domain"] + held.y_test).tolist() == [5] * 8
    )  # of every class of a domain
    together = np.concatenate([held.x, held.x_test])
    assert np.array_equal(np.sort(together[:, 0]), np.sort(x[:, 0]))
    assert np.array_equal(held.x_test, validation_of(made, 0.2).x_test)
    with pytest.raises(DataError, match="E403"):
        validation_of(made, 0.001)


@pytest.mark.parametrize("skew", ["iid", "column:site"])
def test_test_samples_bounds_the_test_set_in_proportion_and_changes_nothing_else(skew):
    """By hand: of 20 samples of class 0 and 10 of class 1, six are four and two; so they are of 20 samples of
    one site and 10 of another."""
    y_test, site = np.repeat([0, 1], [20, 10]), np.tile([0, 0, 1], 10)
    x_test = np.arange(30.0)[:, None]
    made = data.arrays(
        x_test + 100, y_test, x_test, y_test, columns={"site": site}, test_columns={"site": site}
    )
    whole, few, all_of_it = (data.build(made, skew, 2, rng(1), rng(2), test_samples=n) for n in (None, 6, 30))
    assert np.bincount(few.y_test).tolist() == [4, 2]
    assert set(few.x_test[:, 0]) <= set(whole.x_test[:, 0])
    assert few.train.rows.tolist() == whole.train.rows.tolist()
    assert sorted(few.test.rows) == list(range(6))
    assert np.array_equal(all_of_it.x_test, whole.x_test)
    if skew == "column:site":
        assert few.test_sizes.tolist() == [4, 2]


def test_site_names_the_column_of_archives_arrays_folders_and_named_sets_alike(tmp_path):
    x, y, town = rng().random((60, 3), dtype=np.float32), np.arange(60) % 2, np.array(["a", "b"] * 30)
    np.savez(tmp_path / "x.npz", x=x, y=y, town=town)
    (tmp_path / "npy").mkdir()
    for name, values in (("x", x), ("y", y), ("town", town)):
        np.save(tmp_path / "npy" / f"{name}.npy", values)
    for way in ("a/cat", "a/dog", "b/cat", "b/dog"):
        (tmp_path / "images" / way).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (8, 8), 9 * i).save(tmp_path / "images" / way / f"{i}.png")
    arrays = data.arrays(x, y, columns={"town": town})
    for source, site in (("x.npz", "town"), ("npy", "town"), ("images", "site"), (arrays, "town")):
        source = source if isinstance(source, Dataset) else tmp_path / source
        dataset, settings = settings_of(source, site=site)
        assert settings["skew"] == f"column:{site}"
        dataset = data.read(settings["data"]) if dataset is None else dataset
        assert dataset.labels[site] == ("a", "b")
        with pytest.raises(DataError, match=r"E40[34] .*nowhere"):
            data.take(source, site="nowhere")
