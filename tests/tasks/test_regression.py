"""Regression: a number for every sample, from the table to the page, with scores of which less is better."""

from __future__ import annotations

import dataclasses
import html
import json

import numpy as np
import pytest
import torch

import unskew
from tests.cli.calling import call
from tests.federation import fake
from unskew import data
from unskew.data import data_overview
from unskew.data.samples import dataset
from unskew.data.samples.dataset import Target, strata
from unskew.data.skew import partition
from unskew.errors import DataError, UnskewError, UsageError
from unskew.federation.protocol.hello import Hello, data_difference
from unskew.federation.protocol.study_rules import ServerView
from unskew.federation.site_data import load
from unskew.records.checkpoints import digest
from unskew.tasks import metric_functions as functions
from unskew.tasks.task import Regression, task_of

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = X @ np.array([3.0, -2.0, 0.5]) + 10
LINEAR = {"model": "mlp(hidden=[])", "rounds": 3, "epochs": 2, "lr": 0.1, "clients": 4, "workers": 1}


def test_scores_by_hand():
    task, y = Regression(center=10, scale=2), np.array([1.0, 2.0, 6.0])
    guess = task.predictions(torch.tensor([[-4.5], [-3.0], [-2.0]])).numpy()
    assert guess.tolist() == [1, 4, 6]
    assert task.scores(guess, y, 1) == pytest.approx({"rmse": (4 / 3) ** 0.5, "mae": 2 / 3, "r2": 1 - 4 / 14})
    assert next(iter(task.scores(guess, y, 1))) == task.main_score
    assert task.targets(torch.tensor(y), 1).tolist() == [[-4.5], [-4.0], [-2.0]]
    assert task.loss(torch.tensor([[1.0]]), torch.tensor([[3.0]])).tolist() == [4]
    assert Regression(kind="mae").loss(torch.tensor([[1.0]]), torch.tensor([[3.0]])).tolist() == [2]
    assert task.scores(guess[:0], y[:0], 1) == task.client_scores(guess[:0], y[:0], 1) == {}


def test_r2_of_equal_targets_is_left_out_not_invented():
    assert Regression().scores(np.array([1.0, 2.0]), np.array([5.0, 5.0]), 1).keys() == {"rmse", "mae"}
    told = data.arrays(X[:20], Y[:20], X[:2], [4.0, 4.0], target="price")
    assert "R² is undefined and left out" in data_overview.table(told)


def test_scores_of_clients_pool_to_that_of_all_rows():
    task, guess, y = Regression(), RNG.normal(size=9), RNG.normal(size=9)
    each = [task.client_scores(guess[a:b], y[a:b], 1) for a, b in ((0, 2), (2, 9))]
    whole = task.scores(guess, y, 1)
    assert task.pooled([2 / 9, 7 / 9], each) == pytest.approx({m: whole[m] for m in ("rmse", "mae")})


def test_which_losses_go_with_which_labels():
    assert task_of(Y, target=Target("price")).kind == "mse"
    for loss, target in (("ce", Target("price")), ("mse", None)):
        with pytest.raises(UsageError, match=f"E109 loss={loss} does not fit"):
            task_of(np.zeros(3, int), loss, target)


def test_gradient_descent_as_numpy_does_it():
    """One client, full batches, a linear model: three rounds are three steps on (y - mean) / std."""
    given = {**LINEAR, "epochs": 1, "batch": 60, "clients": 1, "skew": "iid", "normalise": "none"}
    made, start = (
        unskew.run("fedavg", (X, Y, X, Y), target="price", **given | {"lr": lr}) for lr in (0.1, 1e-12)
    )
    w, b = (start.weights[f"head.{n}"].double().numpy() for n in ("weight", "bias"))
    u, x = (Y - Y.mean()) / Y.std(), X.astype(float)
    for _ in range(3):
        error = x @ w[0] + b[0] - u
        w, b = w - 0.1 * 2 * (error @ x)[None] / 60, b - 0.1 * 2 * error.mean()
    assert made.weights["head.weight"].numpy() == pytest.approx(w, abs=1e-5)
    guess = (x @ w[0] + b[0]) * Y.std() + Y.mean()
    assert made.predict(X) == pytest.approx(guess, abs=1e-3)
    assert made.scores()["last"] == pytest.approx(np.sqrt(((guess - Y) ** 2).mean()), abs=1e-3)


@pytest.mark.parametrize(
    ("y", "target", "says"),
    [
        (np.where(np.arange(60) == 7, np.nan, Y), "price", "E404 .*training sample 7 is nan .1 such"),
        (np.full(60, 4.0), "price", "E404 .*'price' is 4 in every training sample"),
        (np.array(["a", "b"] * 30), "price", "E404 .*one number a sample"),
        (np.stack([Y, Y], 1), "price", r"E404 .*targets are float64 \[60, 2\]"),
        (Y, None, "E404 .*ask for regression: name the target, target='price'"),
    ],
)
def test_targets_that_nobody_can_learn_are_refused(y, target, says):
    with pytest.raises(DataError, match=says):
        data.arrays(X, y, target=target)


YS = np.stack([Y, 1000 * X[:, 0] + X[:, 1] ** 2], 1)


def test_several_targets_are_scored_in_their_standard_deviations():
    """scikit-learn's errors of standardised targets; its R² of several targets is their mean, too."""
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    task, guess = Regression((10.0, 2.0), (2.0, 500.0)), YS + RNG.normal(size=YS.shape) * [1, 100]
    u, g = (YS - [10, 2]) / [2, 500], (guess - [10, 2]) / [2, 500]
    theirs = {"rmse": mean_squared_error(u, g) ** 0.5, "mae": mean_absolute_error(u, g)}
    assert task.scores(guess, YS, 2) == pytest.approx({**theirs, "r2": r2_score(YS, guess)})
    task = dataclasses.replace(task, names=("dose", "rate"))
    of_one = mean_squared_error(YS, guess, multioutput="raw_values") ** 0.5
    theirs |= {"rmse:dose": of_one[0], "rmse:rate": of_one[1]}
    each = [task.client_scores(guess[a:b], YS[a:b], 2) for a, b in ((0, 20), (20, 60))]
    assert task.pooled([1 / 3, 2 / 3], each) == pytest.approx(theirs)
    z = task.targets(torch.tensor(YS), 2)
    assert z.numpy() == pytest.approx(u, abs=1e-5)
    assert task.predictions(z).numpy() == pytest.approx(YS, abs=1e-3)
    assert task.loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 4.0]])).tolist() == [2.5]
    assert functions.r2(YS, guess) == pytest.approx(r2_score(YS, guess))
    constant = np.stack([YS[:, 0], np.full(60, 7.0)], 1)
    assert task.scores(guess, constant, 2)["r2"] == pytest.approx(r2_score(YS[:, 0], guess[:, 0]))


def test_several_targets_from_a_table_to_predictions_and_an_export(tmp_path):
    """One client, full batches of all rows: the weights of a linear model after three steps, as NumPy takes
    them on the mean over targets; and the columns of what is predicted."""
    lines = [",".join(map(repr, [*x, *y])) for x, y in zip(X.tolist(), YS.tolist())]
    (tmp_path / "set").mkdir()
    for part in ("train", "test"):
        (tmp_path / f"set/{part}.csv").write_text("\n".join(["u,v,w,dose,rate", *lines]) + "\n")
    given = {**LINEAR, "epochs": 1, "batch": 60, "clients": 1, "skew": "iid", "normalise": "none"}
    given["metrics"] = "median_error"
    text = f"{tmp_path}/set(target='dose,rate')"
    made = unskew.run("fedavg", text, **given, folder=tmp_path / "runs", name="r")
    start = unskew.run("fedavg", text, **given | {"lr": 1e-12})
    w, b = (start.weights[f"head.{n}"].double().numpy() for n in ("weight", "bias"))
    u, x = (YS - YS.mean(0)) / YS.std(0), X.astype(float)
    for _ in range(3):
        error = x @ w.T + b - u
        w, b = w - 0.1 * 2 * (error.T @ x) / 120, b - 0.1 * 2 * error.mean(0) / 2
    assert made.weights["head.weight"].numpy() == pytest.approx(w, abs=1e-5)
    guess = (x @ w.T + b) * YS.std(0) + YS.mean(0)
    assert made.predict(X) == pytest.approx(guess, rel=1e-3, abs=1e-2)
    assert made.federation.classes == ("dose", "rate")
    errors = ((guess - YS) ** 2).mean(0) ** 0.5
    for scope in ("global", "global@client"):
        last = [made.scores(scope, f"rmse:{name}")["last"] for name in ("dose", "rate")]
        assert last == pytest.approx(errors.tolist(), rel=1e-4)
        last = [made.scores(scope, f"median_error:{name}")["last"] for name in ("dose", "rate")]
        assert last == pytest.approx(np.median(np.abs(guess - YS), 0).tolist(), rel=1e-4)
    assert f"RMSE of rate: global {errors[1]:.4g}" in made.table()
    assert "RMSE of rate (lower is better), global" in html.unescape(made.report().read_text())
    assert unskew.load(tmp_path / "runs/r").predict(X) == pytest.approx(made.predict(X))
    (tmp_path / "new.csv").write_text("u,v,w\n" + ",".join(map(repr, X[0].tolist())) + "\n")
    head, row = call("predict", "runs/r", "new.csv", cwd=tmp_path).out.split()
    assert head == "input,dose,rate"
    assert [float(v) for v in row.split(",")[1:]] == pytest.approx(made.predict(X)[0], rel=1e-5)
    made.export(tmp_path / "out")
    facts = json.loads((tmp_path / "out/model.json").read_text())
    assert facts["outputs"]["shape"] == ["N", 2]
    assert facts["target"]["scale"] == pytest.approx(YS.std(0).tolist())


def test_several_targets_are_dealt_by_the_first_and_described():
    assert strata(YS).tolist() == strata(Y).tolist()
    dealt = [partition("pathological:2", y, 5, np.random.default_rng(0)).rows.tolist() for y in (Y, YS)]
    assert dealt[0] == dealt[1]
    made = data.arrays(np.column_stack([X, 2 * YS[:, 1] + 1]), YS, target="dose,rate")
    assert f"dose {made.y[:, 0].mean():.5g} ± {made.y[:, 0].std():.5g}" in data_overview.table(made)
    assert "is the target in another unit" in data_overview.leaks(made)
    whole = data.arrays(X[:40], YS[:40], X[40:], YS[40:], target="dose,rate")
    clients = {"a": (X[:20], YS[:20]), "b": (X[20:40], YS[20:40])}
    assert data.take((clients, (X[40:], YS[40:])), target="dose,rate").target == whole.target


@pytest.mark.parametrize(
    ("y", "target", "says"),
    [
        (YS, "dose", r"targets are float64 \[60, 2\]; .*target='a,b'"),
        (YS, "dose,rate,mass", r"must be numbers, \[N, 3\]"),
        (np.stack([Y, np.ones(60)], 1), "dose,sick", "write 1 where it is there and 0"),
        (np.where(YS[7, 1] == YS, np.nan, YS), "dose,rate", "'rate' of training sample 7 is nan"),
        (YS, Target("dose,rate", 1.0, 2.0, given=True), "a center and a scale for each"),
    ],
)
def test_several_targets_that_cannot_be_learnt_are_refused(y, target, says):
    with pytest.raises(DataError, match=f"E404 .*{says}"):
        data.arrays(X, y, target=target)
    with pytest.raises(DataError, match="E404 d: the target 'rate' is 3 in every training sample"):
        Target("dose,rate").fit(np.stack([Y, np.full(60, 3.0)], 1), "d")


def test_sites_agree_on_the_constants_of_several_targets(tmp_path):
    rows = "\n".join(f"{i % 7},{i / 3},{i * i / 9}" for i in range(40))
    (tmp_path / "t.csv").write_text(f"u,dose,rate\n{rows}")
    path = f"{tmp_path}/t.csv"
    with pytest.raises(DataError, match=r"agree on them, such as target='dose,rate',center=\[100, 100\]"):
        load(f"{path}(target='dose,rate')")
    one, other = (
        Hello.of("s", load(f"{path}(target='dose,rate',center=[5,{c}],scale=[4,50])"), {"torch": "2"})
        for c in (80, 90)
    )
    assert one.learnt == Target("dose,rate", (5.0, 80.0), (4.0, 50.0), given=True)
    assert "sites hold different data: the target's center and scale" in data_difference(one, other)
    assert Hello.read(json.loads(json.dumps(one.as_json()))) == one
    assert ServerView.of("sites", [one]).y.shape == (0, 2)
    for lie in ([1, 1], [5, 80, 4, 0], [5, 80, 4]):
        with pytest.raises(ValueError, match="mean and a scale"):
            Hello.read({**one.as_json(), "target": lie})


def table(tmp_path, column: list[str]):
    path = tmp_path / "houses.csv"
    path.write_text(
        "\n".join(["size,bank,price", *(f"{i % 7},{'ab'[i % 2]},{v}" for i, v in enumerate(column))])
    )
    return path


def test_tables_name_their_target(tmp_path):
    path = table(tmp_path, [str(i * 0.5) for i in range(40)])
    given = f"{path}(target=price,site=bank)"
    read_ = data.read(given)
    assert read_.target == Target("price", read_.y.mean(), read_.y.std())
    assert (read_.classes, read_.y.dtype, len(read_.y_test)) == (("price",), float, 8)
    assert data.read(f"{path}(target=price,center=10,scale=4)").target == Target("price", 10, 4, given=True)
    held = dataset.validation_of(read_, 0.25)
    assert held.target == Target("price", held.y.mean(), held.y.std()) != read_.target
    for options, says in (
        ("label=price,target=price", "give one of them"),
        ("target=prise", "no column 'prise'.*price"),
        ("target=bank", "'bank' holds words, such as 'a'; .*label=bank"),
        ("target=price,center=1", "center and scale belong together"),
        ("target=price,center=1,scale=0", "scale is above 0"),
        ("center=1,scale=2", "name its column"),
    ):
        with pytest.raises(UnskewError, match=says):
            data.read(f"{path}({options})")


def test_tenths_of_the_target_are_dealt_like_classes():
    """The smallest tenth is a class of its own: with two of ten a client knows a part of the range alone."""
    groups = strata(Y)
    assert np.bincount(groups).tolist() == [6] * 10
    assert (np.diff(groups[np.argsort(Y)]) >= 0).all()
    dealt = partition("pathological:2", Y, 5, np.random.default_rng(0))
    assert all(len(set(groups[rows])) <= 2 for rows in dealt)
    even = partition("iid", Y, 6, np.random.default_rng(0))
    assert all(np.bincount(groups[rows]).tolist() == [1] * 10 for rows in even)
    assert strata(np.array([0.0, 5.0, 1e9]), among=Y).tolist() == [0, strata(np.append(Y, 5.0))[-1], 9]
    assert (
        set(strata(np.array([0.0] * 50 + [1.0, 2.0]))) == {0, 1}
        or len(set(strata(np.array([0.0] * 50)))) == 1
    )


def five(target: Target) -> data.Federation:
    """The federation of the tests of sites, with one target or two, by the same constants everywhere."""
    of = fake.federation()
    y = (of.y + of.x.mean((1, 2, 3))).astype(float)
    y, names = (y, ("dose",)) if target.name == "dose" else (np.stack([y, 9 - y**2], 1), ("dose", "rate"))
    return dataclasses.replace(of, y=y, y_test=y[:60], classes=names, target=target)


@pytest.mark.parametrize(
    "target",
    [
        Target("dose", 1.0, 0.5, given=True),
        Target("dose,rate", (1.0, 6.0), (0.5, 4.0), given=True),
    ],
)
def test_the_same_bits_and_scores_over_a_network(target, tmp_path, monkeypatch):
    """Scores are of other batches, so their last digit may differ; the weights may not."""
    whole = five(target)
    monkeypatch.setattr(fake, "data_of", lambda of, k: site_data(of, k, target))
    settings = dataclasses.replace(fake.small("fedbn", lr=0.01, rounds=2), metrics="median_error")
    channel = fake.Direct(fake.sites(tmp_path / "sites", whole))
    loop, state, _ = fake.run(tmp_path / "run", channel, settings)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    alone = unskew.run("fedbn", whole, **left)
    assert digest(state.weights) == alone.digest
    series = [("global", "rmse"), ("global@client", "mean"), ("global@client", "worst")]
    several = [("global@client", f"{metric}:dose") for metric in ("rmse", "median_error")]
    series += [("global", "rmse:rate"), *several] if target.name != "dose" else []
    for scope, metric in series:
        rounds, values = loop.record.series(scope, metric)
        assert rounds == [0, 1, 2]
        assert values == pytest.approx(alone.record.series(scope, metric)[1], rel=1e-6)
    assert not [e["text"] for e in loop.record.rows["events"] if e["code"] != "round"]


def site_data(of, k: int, target: Target):
    train, test = of.train[k], of.test[k]
    parts = (np.asarray(of.x)[train], of.y[train], of.x_test[test], of.y_test[test])
    return data.Dataset(f"site {k}", *parts, of.classes, target=target)


def test_sites_agree_on_the_constants_or_do_not_take_part(tmp_path):
    path = table(tmp_path, [str(i * 0.5) for i in range(40)])
    with pytest.raises(DataError, match=r"E404 .*agree on them, such as target=price,center=100,scale=50"):
        load(f"{path}(target=price)")
    one, other = (
        Hello.of("s", load(f"{path}(target=price,center=10,scale={scale})"), {"torch": "2"})
        for scale in (4, 5)
    )
    assert "sites hold different data: the target's center and scale" in data_difference(one, other)
    assert Hello.read(json.loads(json.dumps(one.as_json()))) == one
    assert "target" not in Hello.of("s", data.read("digits"), {}).as_json()
    for lie in ([1], [0, 0], [float("nan"), 1], ["x", 1], [1, float("inf")]):
        with pytest.raises((ValueError, TypeError)):
            Hello.read({**one.as_json(), "target": lie})
