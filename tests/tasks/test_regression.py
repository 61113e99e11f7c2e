"""Regression: a number for every sample, from the table to the page, with scores of which less is better."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import unskew
from tests.federation import fake
from unskew import data
from unskew.data import data_overview
from unskew.data.samples import dataset
from unskew.data.samples.dataset import Target, strata
from unskew.data.skew import partition
from unskew.errors import DataError, UnskewError, UsageError
from unskew.federation.protocol.hello import Hello, data_difference
from unskew.federation.site_data import load
from unskew.records.checkpoints import digest
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
    """One client, full batches, a linear model: three rounds of one epoch are three steps on (y - mean) /
    std."""
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
        (
            np.full(60, 4.0),
            "price",
            "E404 .*'price' is 4 in every training sample, so there is nothing to learn",
        ),
        (np.array(["a", "b"] * 30), "price", "E404 .*one number a sample"),
        (np.stack([Y, Y], 1), "price", r"E404 .*targets are float64 \[60, 2\]"),
        (Y, None, "E404 .*ask for regression: name the target, target='price'"),
    ],
)
def test_targets_that_nobody_can_learn_are_refused(y, target, says):
    with pytest.raises(DataError, match=says):
        data.arrays(X, y, target=target)


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


def five() -> tuple:
    """The federation of the tests of sites, with a target that all sites learn by the same constants."""
    of = fake.federation()
    y, target = of.y + of.x.mean((1, 2, 3)), Target("dose", 1.0, 0.5, given=True)
    whole = dataclasses.replace(
        of, y=y.astype(float), y_test=y[:60].astype(float), classes=("dose",), target=target
    )
    return whole, target


def test_the_same_bits_and_scores_over_a_network(tmp_path, monkeypatch):
    """Scores are of other batches, so their last digit may differ; the weights may not."""
    whole, target = five()
    monkeypatch.setattr(fake, "data_of", lambda of, k: site_data(of, k, target))
    settings = fake.small("fedbn", lr=0.01, rounds=2)
    channel = fake.Direct(fake.sites(tmp_path / "sites", whole))
    loop, state, _ = fake.run(tmp_path / "run", channel, settings)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    alone = unskew.run("fedbn", whole, **left)
    assert digest(state.weights) == alone.digest
    for scope, metric in (("global", "rmse"), ("global@client", "mean"), ("global@client", "worst")):
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
