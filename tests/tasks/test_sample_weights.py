"""Weights of samples in the loss: what they mean, where they come from, and where they are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

import unskew
from tests.federation import fake
from tests.samples import a_part_of
from unskew import data
from unskew.core import Batch
from unskew.data.samples.dataset import SAMPLE_WEIGHT
from unskew.errors import DataError, UnskewError, UsageError
from unskew.methods import registry
from unskew.records.checkpoints import digest

RNG = np.random.default_rng(5)
X = RNG.normal(size=(90, 3)).astype(np.float32)
Y = (X @ [1.0, -1.0, 0.5] + RNG.normal(size=90) > 0).astype(int)
V = RNG.integers(1, 5, 90)
SITE = np.repeat(["a", "b", "c"], [50, 30, 10])
SMALL = {"rounds": 2, "epochs": 2, "lr": 0.2, "workers": 1, "progress": False, "normalise": "none"}


def train(given, method="fedavg", **settings):
    settings = {"model": "mlp(hidden=[4])", "skew": "column:site", **SMALL, **settings}
    return unskew.run(method, given, **settings)


def samples(rows=slice(None), weight=""):
    return data.arrays(X[rows], Y[rows], X[:9], Y[:9], columns={"site": SITE[rows]}, weight=weight)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedprox+apfl"])
@pytest.mark.parametrize("lanes", ["1", "4"])
def test_whole_weights_are_rows_that_occur_so_often(method, lanes):
    """In steps on all rows of a client, also where lanes pad the smaller clients. Clients count equally in
    the merge, because repeated rows are more rows."""
    settings = {"method": method, "lanes": lanes, "batch": 1000, "weighting": "equal"}
    weighted = train(samples(weight=V), **settings)
    repeated = train(samples(np.repeat(np.arange(90), V)), **settings)
    plain = train(samples(), **settings)
    assert not torch.allclose(weighted.weights["head.weight"], plain.weights["head.weight"], atol=1e-4)
    for name, value in repeated.weights.items():
        assert torch.allclose(weighted.weights[name], value, atol=2e-6), name


def test_equal_weights_change_nothing_and_their_size_does_not_count():
    plain = train(samples(), batch=8)
    for v in (np.full(90, 3), np.full(90, 0.001)):
        other = train(samples(weight=v), batch=8)
        assert all(torch.allclose(w, other.weights[n], atol=1e-6) for n, w in plain.weights.items())


def test_a_weighted_mean_by_hand():
    """(1 * 4 + 3 * 8) / (1 + 3); the row of padding does not count, and neither does a batch of zeros."""
    x = torch.zeros(3)
    batch = Batch(x, x, torch.tensor([1.0, 1.0, 0.0]), importance=torch.tensor([1.0, 3.0, 5.0]))
    assert batch.mean(torch.tensor([4.0, 8.0, torch.inf])) == 7
    assert batch.replace(importance=x).mean(torch.ones(3)) == 0


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_it_converges_to_what_scikit_learn_fits_with_these_weights(kind):
    """Gradient descent on all rows of one client."""
    v, numbers = RNG.exponential(size=90), kind == "numbers"
    y, target = (X @ [3.0, 1.0, -2.0] + RNG.normal(size=90), "dose") if numbers else (Y, None)
    given = data.arrays(X, y, X, y, weight=v, target=target)
    settings = {"rounds": 1, "epochs": 1500, "batch": 90, "lr": 0.3 if target else 1.0, "clients": 1}
    run = train(given, model="mlp(hidden=[])", skew="iid", **settings)
    if numbers:
        assert run.predict(X) == pytest.approx(LinearRegression().fit(X, y, v).predict(X), abs=2e-3)
    else:
        theirs = LogisticRegression(C=np.inf, tol=1e-8).fit(X, y, v).predict_proba(X)
        assert run.predict_proba(X) == pytest.approx(theirs, abs=2e-3)


def sets_with_weights(folder):
    """The same set, read from every kind of source with a column of weights."""
    lines = [f"{x[0]!r},{y},{s},{v}" for x, y, s, v in zip(X.tolist(), Y, SITE, V)]
    (folder / "t.csv").write_text("\n".join(["u,sick,site,v", *lines]) + "\n")
    np.savez(folder / "t.npz", x=X, y=Y, v=V, site=SITE)
    yield data.read(folder / "t.npz", weight="v")
    yield data.read(f"{folder}/t.csv(label=sick, weight=v)")
    halves = {name: data.arrays(X[rows], Y[rows], weight=V[rows]) for name, rows in zip("ab", HALVES)}
    yield data.take(halves)
    with pytest.raises(DataError, match="E403 'b' brings no weights of samples"):
        data.take({**halves, "b": (X, Y)})
    pq, csv = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.csv")
    table = csv.read_csv(folder / "t.csv")
    yield data.take(table, label="sick", weight="v")
    pq.write_table(table, folder / "t.parquet")
    yield data.read(folder / "t.parquet", label="sick", weight="v")


HALVES = slice(0, 40), slice(40, 90)


def test_weights_are_a_column_of_tables_archives_and_frames(tmp_path):
    """They are no feature, no label and no site, and stay with their rows in every split."""
    weight_of = {float(x): v for x, v in zip(X[:, 0], V)}
    for read in sets_with_weights(tmp_path):
        assert read.shape in ((1,), (3,))
        assert [weight_of[float(x)] for x in read.x[:, 0]] == read.columns[SAMPLE_WEIGHT].tolist()
        assert "count by their weights in the loss, 1 to 4" in str(read.intake.notes)


def test_run_and_compare_take_the_column_of_weights(tmp_path):
    """As they take that of labels: of a path, of a DataFrame, and of the rows that a comparison writes."""
    lines = [f"{x[0]},{y},{v}" for x, y, v in zip(X.tolist(), Y.tolist(), V.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["u,sick,v", *lines]) + "\n")
    frame = pytest.importorskip("pyarrow.csv").read_csv(tmp_path / "t.csv")
    few = {"rounds": 1, "clients": 3, "skew": "iid", "workers": 1, "label": "sick", "model": "mlp"}
    named = unskew.run("fedavg", f"{tmp_path}/t.csv(weight=v)", **few).digest
    for given in (str(tmp_path / "t.csv"), frame):
        assert unskew.run("fedavg", given, weight="v", **few).digest == named
    unskew.compare(["fedavg"], frame, weight="v", seeds=1, references=False, folder=tmp_path, name="c", **few)
    assert unskew.load(tmp_path / "c" / "fedavg--s0").digest == named


@pytest.mark.parametrize(
    ("cell", "says"), [("", "E405 .*'v' has no value"), ("low", "E40[45] "), ("-1", "E405 .*is -1")]
)
def test_weights_of_a_table_that_are_none_are_refused(cell, says, tmp_path):
    (tmp_path / "w.csv").write_text("\n".join(["u,sick,v", "1,0,1", f"2,1,{cell}", *["3,1,2", "4,0,1"] * 30]))
    with pytest.raises(UnskewError, match=says):
        data.read(f"{tmp_path}/w.csv(label=sick, weight=v)").y.sum()


@pytest.mark.parametrize(
    ("v", "says"), [(np.zeros(90), "all of these are 0"), (V[:5], "5 values"), (SITE, "such as a")]
)
def test_weights_of_arrays_that_are_none_are_refused(v, says):
    with pytest.raises(DataError, match=says):
        samples(weight=v)
    with pytest.raises(DataError, match=r"E403 .*these data have none; give unskew\.data\.arrays"):
        data.take((X, Y), weight="v")


@pytest.mark.parametrize("method", a_part_of(registry.names(), 4, always=("fedavg", "scaffold", "ditto")))
def test_a_sample_of_weight_0_moves_nothing_or_the_method_refuses_weights(method):
    """Of `standardise`, which shares means of all samples, the page on data says so."""
    weight, other = np.where(V > 1, V, 0), X.copy()
    other[weight == 0] = RNG.normal(size=(int((weight == 0).sum()), 3))
    tested = X[weight > 0][:9], Y[weight > 0][:9]

    def outcome(x: np.ndarray) -> str:
        given = data.arrays(x, Y, *tested, columns={"site": SITE}, weight=weight)
        try:
            return train(given, method, lr=0.1, batch=8, lanes="1").digest
        except UsageError as refusal:
            return refusal.code

    assert outcome(X) == outcome(other) or method == "standardise"


@pytest.mark.parametrize("method", ["flea", "bsm", "dpsgd", "fedbabu"])
def test_methods_in_which_all_samples_count_alike_refuse_them(method):
    with pytest.raises(UsageError, match=f"E108 '{method}' cannot run here: all samples count alike"):
        train(samples(weight=V), method)


def test_a_run_resumes_with_its_weights_and_not_with_others(tmp_path):
    def write(v):
        np.savez(tmp_path / "set.npz", x=X, y=Y, v=v, site=SITE)

    write(V)
    text, options = f"{tmp_path}/set.npz(weight=v)", {"batch": 8, "folder": tmp_path}
    whole = train(text, name="whole", **options | {"rounds": 3})
    train(text, name="part", **options)
    assert unskew.resume(tmp_path / "part", rounds=3).digest == whole.digest
    write(V + 1)
    with pytest.raises(UnskewError, match="E112"):
        unskew.resume(tmp_path / "part", rounds=4)


def test_the_same_bits_over_a_network(tmp_path, monkeypatch):
    of = fake.federation()
    v = RNG.integers(1, 9, len(of.y)) / 2
    whole = dataclasses.replace(of, columns={SAMPLE_WEIGHT: v})

    def site_data(of, k):
        train, test = of.train[k], of.test[k]
        parts = (np.asarray(of.x)[train], of.y[train], of.x_test[test], of.y_test[test])
        return data.Dataset(f"site {k}", *parts, of.classes, columns={SAMPLE_WEIGHT: v[train]})

    monkeypatch.setattr(fake, "data_of", site_data)
    settings = fake.small("fedbn", lr=0.01, rounds=2)
    _, state, _ = fake.run(tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", whole)), settings)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    assert digest(state.weights) == unskew.run("fedbn", whole, **left).digest
    assert digest(state.weights) != unskew.run("fedbn", of, **left).digest
