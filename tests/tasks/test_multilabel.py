"""Several labels a sample: from arrays and tables to the page, over a network, and what is refused."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import unskew
from tests.federation import fake
from unskew import data
from unskew.data.samples.dataset import rarest_labels, strata
from unskew.data.skew import build, partition
from unskew.errors import DataError, UsageError
from unskew.federation.protocol.hello import Hello, data_difference
from unskew.federation.site_data import load
from unskew.records.checkpoints import digest
from unskew.tasks.metric_functions import (
    label_auroc,
    label_average_precision,
    label_macro_f1,
    label_micro_f1,
)
from unskew.tasks.task import MultiLabel, task_of

RNG = np.random.default_rng(4)
X = RNG.normal(size=(80, 4)).astype(np.float32)
Y = np.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0.5, X[:, 3] < -1], 1)
SMALL = {"model": "mlp(hidden=[])", "rounds": 2, "epochs": 2, "lr": 0.5, "clients": 3, "workers": 1}
TRUE = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]], bool)
P = np.array([[0.9, 0.2, 0.4], [0.1, 0.2, 0.3], [0.4, 0.8, 0.6], [0.2, 0.9, 0.7]])


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> unskew.Result:
    return unskew.run("fedavg", (X, Y), name="m", folder=tmp_path_factory.mktemp("runs"), **SMALL)


def test_scores_by_hand():
    """Predicted are {0}, {}, {1, 2} and {1, 2}; the true labels {0, 2}, {}, {0, 1} and {2}."""
    task = MultiLabel()
    assert task.scores(P, TRUE, 3) == pytest.approx({"sample_f1": (2 / 3 + 1 + 2 / 4 + 2 / 3) / 4})
    assert task.scores(P[:0], TRUE[:0], 3) == {}
    # as from a model that knows nothing: no label is above a half, so none is predicted
    even = np.full((1, 3), 0.5)
    assert task.scores(even, TRUE[:1], 3) == {"sample_f1": 0}
    assert label_micro_f1(TRUE[:1], even) == 0
    assert label_micro_f1(TRUE, P) == pytest.approx(2 * 3 / (5 + 5))
    assert label_macro_f1(TRUE, P) == pytest.approx((2 / 3 + 2 / 3 + 2 / 4) / 3)
    # the label that is not there has no part in it
    assert label_macro_f1(TRUE[2:3], P[2:3]) == pytest.approx((0 + 1) / 2)
    assert label_auroc(TRUE, P) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert label_average_precision(TRUE, P) == pytest.approx((1 + 1 / 2 + (1 + 2 / 3) / 2) / 3)
    assert label_auroc(TRUE[:, :0], P[:, :0]) is label_average_precision(TRUE[1:2], P[1:2]) is None
    assert label_micro_f1(TRUE[1:2], P[1:2]) is label_macro_f1(TRUE[1:2], P[1:2]) is None


def test_the_loss_by_hand():
    task = MultiLabel()
    loss = task.loss(torch.tensor([[0.0, 2.0]]), task.targets(torch.tensor([[True, False]]), 2))
    assert loss.tolist() == pytest.approx([(math.log(2) + math.log(1 + math.exp(2))) / 2])
    assert task.loss(torch.tensor([[200.0]]), torch.tensor([[0.0]])).tolist() == [200]
    assert task.predictions(torch.tensor([[0.0]])).tolist() == [[0.5]]
    assert isinstance(task_of(Y), MultiLabel)
    with pytest.raises(UsageError, match="E109 loss=ce does not fit"):
        task_of(Y, "ce")


def test_a_client_of_one_learns_as_torch_does():
    """One client, full batches: gradient descent on the mean over samples and labels."""
    given = {**SMALL, "clients": 1, "rounds": 3, "epochs": 1, "batch": 80, "normalise": "none", "skew": "iid"}
    made = unskew.run("fedavg", (X, Y, X, Y), **given)
    start = unskew.run("fedavg", (X, Y, X, Y), **{**given, "lr": 1e-12, "rounds": 1})
    net = torch.nn.Linear(4, 3)
    net.load_state_dict({n.removeprefix("head."): w for n, w in start.weights.items()})
    for _ in range(3):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            net(torch.tensor(X)), torch.tensor(Y).float()
        )
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for w, g in zip(net.parameters(), gradients):
                w -= 0.5 * g
    assert torch.allclose(made.weights["head.weight"], net.weight, atol=1e-5)
    p = made.predict_proba(X)
    assert p == pytest.approx(net(torch.tensor(X)).sigmoid().detach().numpy(), abs=1e-4)
    assert (made.predict(X) == (p > 0.5)).all()
    assert made.scores()["last"] == pytest.approx(MultiLabel().scores(p, Y, 3)["sample_f1"], abs=1e-6)
    assert made.scores("global", "auroc")["last"] == pytest.approx(label_auroc(Y, p), abs=1e-6)


def test_labels_are_read_from_arrays_and_tables(tmp_path):
    rows = data.arrays(X, Y.astype(int))
    assert rows.several
    assert rows.classes == ("0", "1", "2")
    assert rows.y.dtype == bool
    named = data.arrays(X, np.eye(3)[Y[:, 0].astype(int)], target="a, b,c")
    assert (named.classes, named.several) == (("a", "b", "c"), True)
    assert not data.arrays(X, np.eye(3)[Y[:, 0].astype(int)]).several  # one-hot rows are classes
    table = tmp_path / "t.csv"
    lines = [f"{x[0]},{x[1]},{int(y[0])},{int(y[1])}" for x, y in zip(X.tolist(), Y)]
    table.write_text("\n".join(["u,v,fever,cough", *lines]))
    of_table = data.read(f"{table}(target='fever,cough')")
    assert (of_table.shape, of_table.classes) == ((2,), ("fever", "cough"))
    assert len(of_table.y) + len(of_table.y_test) == 80
    assert unskew.run("fedavg", str(table), target="fever,cough", **SMALL).predict(X[:2, :2]).shape == (2, 2)
    assert load(f"{table}(target='fever,cough')", ["fever", "cough"]).classes == ("fever", "cough")
    with pytest.raises(DataError, match=r"E404 .*has the labels fever,cough, in this order, and --classes"):
        load(f"{table}(target='fever,cough')", ["cough", "fever"])
    clients = {"a": (X[:40], Y[:40]), "b": (X[40:], Y[40:])}
    assert unskew.run("fedavg", clients, target="p,q,r", **SMALL).federation.several


@pytest.mark.parametrize(
    ("y", "target", "says"),
    [
        (Y * 2, "a,b,c", "E404 .*label 'b' of sample 0 is 2; write 1 where it is there"),
        (Y, "a,b", r"E404 .*labels are bool \[80, 3\], and 2 are named \(a, b\); give one column for each"),
        (np.where(Y, np.nan, 0.0), "a,b,c", "E404 .*label .* is nan"),
    ],
)
def test_what_are_no_labels(y, target, says):
    with pytest.raises(DataError, match=says):
        data.arrays(X, y, target=target)


def dealt(skew):
    return build(data.arrays(X, Y), skew, 4, np.random.default_rng(1), np.random.default_rng(2))


def test_a_samples_rarest_label_stands_for_its_class_where_samples_are_dealt():
    y = np.array([[1, 1, 0], [1, 0, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], bool)
    assert rarest_labels(y, y).tolist() == [1, 2, 0, 3, 1]
    assert strata(y[:1], np.array([[0, 1, 0]] * 2, bool)).tolist() == [0]
    rows = partition("classes:1", Y, 4, np.random.default_rng(0))
    assert all(len(set(strata(Y)[one])) <= 2 for one in rows)
    made = dealt("dirichlet:0.3")
    assert made.label_counts.sum(0).tolist() == made.y[made.train.rows].sum(0).tolist()
    assert sorted(made.test.rows.tolist()) == list(range(len(made.y_test)))


def five():
    """The federation of the tests of sites, with two labels a sample."""
    of = fake.federation()
    y = np.stack([of.y == 1, of.x.mean((1, 2, 3)) > 0.3], 1)
    return dataclasses.replace(of, y=y, y_test=y[:60], classes=("one", "bright"))


def test_the_same_bits_and_scores_over_a_network(tmp_path):
    settings = fake.small("fedavg", rounds=1, epochs=1, model="mlp(hidden=[4])")
    loop, state, _ = fake.run(tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", five())), settings)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    alone = unskew.run("fedavg", five(), **left)
    assert digest(state.weights) == alone.digest
    for scope, metric in (("global", "sample_f1"), ("global@client", "mean"), ("global@client", "auroc")):
        expected = alone.record.series(scope, metric)[1]
        assert loop.record.series(scope, metric)[1] == pytest.approx(expected, abs=2e-6), metric
    assert not [e["text"] for e in loop.record.rows["events"] if e["code"] != "round"]


def test_sites_with_one_class_a_sample_take_no_part():
    several, single = (
        Hello.of(n, fake.data_of(f, 0), {}) for n, f in (("a", five()), ("b", fake.federation()))
    )
    assert (
        data_difference(several, single)
        == "sites hold different data: samples have several labels at a and one at b"
    )
    assert Hello.read(several.as_json()) == several
    assert "several" not in single.as_json()
