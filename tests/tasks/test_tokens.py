"""A label for every token: what is learnt, scored and refused, and the same bits over a network."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from tests.federation import fake
from unskew import data
from unskew.data.clients.federation import Federation
from unskew.data.skew import build
from unskew.diagnosis.diagnose import diagnose
from unskew.errors import DataError, UsageError
from unskew.federation.site.site import Site
from unskew.federation.site_data import load
from unskew.records.checkpoints import digest
from unskew.tasks.metric_functions import token_perplexity
from unskew.tasks.task import TokenLabels, task_of

N, T, WORDS = 60, 5, 7
IDS = (np.arange(T + 1) * 3 + np.arange(N)[:, None]) % WORDS
X, Y = IDS[:, :-1], IDS[:, 1:].copy()
Y[::3, 3:] = -100  # padding
GIVEN = (X, Y, X, Y)
RUN = {
    "clients": 3,
    "rounds": 2,
    "epochs": 1,
    "batch": 8,
    "lr": 0.5,
    "skew": "iid",
    "workers": 1,
    "lanes": "1",
}
FILE = """
import torch
from torch import nn

class Speaker(nn.Module):
    def __init__(self, words, classes):
        super().__init__()
        self.table, self.head = nn.Embedding(words, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.table(x))

def make(shape, classes):
    return Speaker(7, classes)
"""


class Speaker(nn.Module):
    """Logits [B, T, C] from ids [B, T]."""

    def __init__(self, turned: bool = False):
        super().__init__()
        self.table, self.head, self.turned = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), turned

    def forward(self, x):
        z = self.head(self.table(x))
        return z.transpose(1, 2) if self.turned else z


def speaker() -> Speaker:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Speaker()


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> unskew.Result:
    return unskew.run(
        "fedavg", GIVEN, model=speaker(), name="t", folder=tmp_path_factory.mktemp("runs"), **RUN
    )


def test_the_loss_and_the_scores_by_hand():
    """Of the second sample one place counts, so its loss is that place's and its accuracy is 1."""
    task, y = TokenLabels(), np.array([[0, 1, 1], [-1, 0, -1]])
    z = torch.zeros(2, 3, 2)
    z[0, 0, 0], z[0, 1, 0], z[1, 0, 1] = 2.0, 1.0, 100.0
    loss = task.loss(z, task.targets(torch.from_numpy(y), 2))
    first = [math.log(1 + math.exp(-2)), math.log(1 + math.e), math.log(2)]
    assert loss.tolist() == pytest.approx([sum(first) / 3, math.log(2)])
    guess = task.predictions(z).numpy()
    assert task.scores(guess, y, 2) == pytest.approx({"token_accuracy": (1 / 3 + 1) / 2})
    assert task.scores(guess[:0], y[:0], 2) == {}
    p = task.probabilities(z, torch.from_numpy(y)).numpy()
    assert token_perplexity(y, p) == pytest.approx(math.exp((sum(first) + math.log(2)) / 4))
    assert token_perplexity(y[:0], p[:0]) is None
    assert isinstance(task_of(y, shape=(3,)), TokenLabels)
    assert task_of(y, shape=(1, 3)).name == "segmentation"
    with pytest.raises(UsageError, match="E109 loss=dice does not fit samples with labelled tokens"):
        task_of(y, "dice", shape=(3,))


@pytest.mark.parametrize("lanes", ["1", "2"])
def test_a_client_learns_as_torch_does(lanes):
    """Descent on the mean over samples of the mean over labelled places, by torch's cross-entropy."""
    whole = build(data.arrays(*GIVEN), "iid", 2, np.random.default_rng(0), np.random.default_rng(1))
    made = unskew.run("fedavg", whole, model=speaker(), **{**RUN, "rounds": 1, "batch": 60, "lanes": lanes})
    mean = {}
    for rows in whole.train:
        net = speaker()
        z, y = net(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])
        each = nn.functional.cross_entropy(z.transpose(1, 2), y, reduction="none", ignore_index=-100)
        (each.sum(1) / (y >= 0).sum(1)).mean().backward()
        for n, w in net.named_parameters():
            mean[n] = mean.get(n, 0) + len(rows) / N * (w.detach() - 0.5 * w.grad)
    for n, w in mean.items():
        torch.testing.assert_close(made.weights[n], w, atol=1e-6, rtol=0)


def test_places_without_a_label_count_nowhere(kept):
    p = kept.predict_proba(X)
    assert p.shape == (N, T, WORDS)
    assert (kept.predict(X) == p.argmax(-1)).all()
    counts = Y >= 0
    of_label = np.take_along_axis(p, np.maximum(Y, 0)[..., None], -1)[..., 0]
    assert kept.scores("global", "perplexity")["last"] == pytest.approx(
        np.exp(-np.log(of_label[counts]).mean())
    )
    right = ((p.argmax(-1) == Y) & counts).sum(1) / counts.sum(1)
    assert kept.scores()["last"] == pytest.approx(right.mean())
    assert kept.federation.label_counts.sum() == counts.sum()
    assert "without a label, which count nowhere" in kept.understood


def test_weights_kept_at_clients_are_scored_as_one_pool():
    made = unskew.run("fedper", GIVEN, model=speaker(), **RUN)
    shares = np.array([len(one) for one in made.federation.test]) / N
    own = [row["token_accuracy"] for row in made.clients()]
    assert made.scores()["last"] == pytest.approx(float((shares * own).sum()))


def test_what_labels_of_zeros_and_ones_mean():
    bits = np.array([[0, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    x = np.arange(15).reshape(5, 3)
    assert data.arrays(x, bits).several
    assert data.arrays(x, bits, classes=["other", "name"]).tokens
    assert data.arrays(x, np.where(bits, bits, -100), classes=["other", "name"]).tokens
    assert not data.arrays(x, np.eye(3)[[0, 1, 2, 0, 1]].astype(int)).masks
    both = data.arrays(x, 2 * bits, classes=["a", "b", "c"], test=0)
    clients = unskew.data.take({"a": (x, 2 * bits), "b": both})
    assert (clients.tokens, clients.classes) == (True, ("a", "b", "c"))


def test_no_label_is_renumbered():
    """Labels 1 to 6 are the ids of a vocabulary that begins with 0."""
    assert data.arrays(X, np.where(Y < 1, 1, Y)).y.max() == 6


@pytest.mark.parametrize(
    ("y", "classes", "says"),
    [
        (X, None, r"the label of every place is the token at that place; give .* x = ids"),
        (np.where(Y >= 0, Y, -7), None, r"training sample 0 at \[3\] is -7"),
        (np.where(np.arange(N)[:, None] == 4, -100, Y), None, "no place of sample 4 has a label"),
        (np.where(Y > 0, 100 * Y, Y), None, "only 7 different labels, but the largest is 600; give classes"),
        (Y, ["a", "b"], "2 classes need labels from 0 to 1"),
        (Y.astype(float), None, "but not zeros and ones"),
    ],
)
def test_labels_that_cannot_be_meant_so(y, classes, says):
    with pytest.raises(DataError, match=f"E404 .*{says}"):
        data.arrays(X, y, X, Y if classes else y, classes=classes)


def test_what_does_not_fit_tokens_is_one_sentence():
    for given, says in (
        ({"model": Speaker(turned=True)}, r"E123 .*\[2, 7, 5\] .* expected \[2, 5, 7\]"),
        ({"model": "auto"}, r"E123 no model that comes with unskew answers at every token"),
        ({"model": "mlp"}, "E123 model 'mlp' gives one answer per sample, but each sample has a label"),
        ({"skew": "dirichlet:0.3"}, "E103 .*these samples have a label for each token; use iid"),
        ({"metrics": "ece"}, "E126 the metric 'ece' does not fit tokens"),
    ):
        with pytest.raises((UsageError, DataError), match=says):
            unskew.run("fedavg", GIVEN, **{"model": speaker(), **RUN, **given})
    with pytest.raises(DataError, match=r"E403 .*test samples"):
        data.arrays(X, Y, X[:, :3], Y[:, :3])
    with pytest.raises(DataError, match=r"E404 .*for every place of each sample"):
        data.arrays(X, Y, X, Y[:, 0])
    with pytest.raises(DataError, match=r"E403 .*these samples have labelled tokens"):
        diagnose(GIVEN, skew="iid", clients=3, model=speaker())


def five() -> Federation:
    """The clients of the tests of sites, with sequences in place of images."""
    of = fake.federation()
    rows, tests = np.resize(np.arange(N), len(of.y)), np.arange(N)
    kept_y = np.where(Y == -100, -1, Y)
    changes = {"x": X[rows].astype(np.float32), "y": kept_y[rows], "x_test": X[tests].astype(np.float32)}
    return dataclasses.replace(of, **changes, y_test=kept_y[tests], classes=tuple("abcdefg"))


def test_the_same_bits_and_scores_over_a_network(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(FILE)
    settings = fake.small("fedavg", rounds=1, epochs=1, model=f"{file}:make")
    sites = fake.sites(tmp_path / "sites", five())
    sites = {n: Site(s.member, s.load, model=settings.model, approve="all") for n, s in sites.items()}
    loop, state, _ = fake.run(tmp_path / "run", fake.Direct(sites), settings)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    alone = unskew.run("fedavg", five(), **left)
    assert digest(state.weights) == alone.digest
    for scope, metric in (
        ("global", "token_accuracy"),
        ("global@client", "mean"),
        ("global@client", "perplexity"),
    ):
        expected = alone.record.series(scope, metric)[1]
        assert loop.record.series(scope, metric)[1] == pytest.approx(expected, rel=1e-5), metric
    assert not [e["text"] for e in loop.record.rows["events"] if e["code"] != "round"]


def test_a_site_names_the_classes_of_all(tmp_path):
    """Of places without a label nothing becomes the last class."""
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    of = load(str(tmp_path / "a.npz"), [str(c) for c in range(9)])
    assert (of.y.min(), of.y.max(), len(of.classes)) == (-1, 6, 9)
    assert of.tokens
