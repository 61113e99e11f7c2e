"""Tokens: an update names the words that a client's samples hold, where the table of words leaves the client.

Likely mistakes: weight decay, which moves every row; padding, which moves never; tables that everybody looks
up alike; an attacker who is told less by noise than its own samples tell it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unskew
from unskew.attacks.kinds.tokens import Tokens, change_of, read_off
from unskew.attacks.target_run import TargetRun
from unskew.runs.reopen import UserCode

WORDS, PLACES, N = 200, 6, 240
NET = """
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self, shape, classes, words=200, bag=False):
        super().__init__()
        self.places = nn.Embedding(6, 8)
        self.words = nn.EmbeddingBag(words, 8, mode="mean") if bag else nn.Embedding(words, 8, padding_idx=0)
        self.head, self.bag = nn.Linear(8, classes), bag

    def forward(self, x):
        h = self.words(x.long() if self.bag else x)
        return self.head((h if self.bag else h.mean(1)) + self.places(torch.arange(6, device=x.device)).mean(0))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and sentences of words of which many are rare, filled up with padding."""
    folder = tmp_path_factory.mktemp("words")
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, N)
    x = np.minimum(rng.zipf(1.4, (N, PLACES)) + 9 * y[:, None], WORDS - 1)
    x[:, 4:] *= rng.integers(0, 2, (N, 2))
    np.savez(folder / "s.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    (folder / "net.py").write_text(NET)
    return folder


def run(
    folder: Path, method: str = "fedavg", name: str = "r", model: str = "Bag", **settings: object
) -> TargetRun:
    few = {
        "clients": 3,
        "rounds": 2,
        "epochs": 1,
        "batch": 10,
        "workers": 1,
        "skew": "iid",
        "lr": 0.1,
    } | settings
    net = f"{folder / 'net.py'}:{model}"
    unskew.run(method, str(folder / "s.npz"), model=net, folder=folder, name=name, progress=False, **few)
    return TargetRun(folder / name, code=UserCode(None, net))


@pytest.fixture(scope="module")
def attacked(folder):
    target = run(folder)
    yield target
    target.close()


def test_an_update_names_the_words_of_a_clients_samples(attacked):
    scores = {s.metric: s for s in Tokens().attempt(attacked, 0).scores}
    assert {s.of for s in scores.values()} == {"rows of words, updates as sent"}  # all look places up alike
    assert scores["AUC"].value == scores["recall"].value == scores["precision"].value == 1
    assert 0.6 < scores["AUC"].floor < 0.95
    assert 0.3 < scores["recall"].floor < 0.95
    assert scores["AUC"].main
    assert {s.n for s in scores.values()} == {3}


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.01, "momentum": 0.9},
        {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
        {"model": "Bag(bag=True)", "lanes": "1"},
    ],
)
def test_decay_and_the_kind_of_table_hide_nothing(folder, tmp_path, settings):
    for file in ("s.npz", "net.py"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    target = run(tmp_path, **settings)
    assert {s.value for s in Tokens().attempt(target, 0).scores} == {1.0}
    target.close()


def test_what_hides_rows_leaves_the_attacker_what_it_knew(folder, tmp_path):
    pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")
    for file in ("s.npz", "net.py"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    target = run(tmp_path, "fedavg+dpsgd(clip=0.1, noise_multiplier=2.0)")
    outcome = Tokens().attempt(target, 0)
    assert not [s.doubt for s in outcome.scores if s.doubt]
    assert next(s for s in outcome.scores if s.main).value < 0.95
    target.close()


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("fedavg+efsign", "w"),  # a row that no sample looks up has equal signs in all its numbers
        ("fedavg+signsgd", "w"),  # its coins for changes of 0 follow from the seed
        ("scaffold", "scaffold/delta"),  # corrections move every row, but their sum is the client's gradient
    ],
)
def test_what_only_seems_to_hide_rows_is_seen_through(folder, tmp_path, method, payload):
    for file in ("s.npz", "net.py"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    target = run(tmp_path, method, rounds=3)
    scores = {s.metric: s.value for s in Tokens().attempt(target, 0).scores if s.payload == payload}
    assert scores == {"AUC": 1, "recall": 1, "precision": 1}
    target.close()


def test_a_table_that_is_the_head_as_well_names_its_rows(folder, tmp_path):
    """Every row moves, because each is a class, too, and the attacker fell back on what is frequent."""
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Tied(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.words, self.mix = nn.Embedding(200, 16), nn.Linear(16, 16)\n"
        "        self.head = nn.Linear(16, 200, bias=False)\n"
        "        self.head.weight = self.words.weight\n"
        "    def forward(self, x):\n"
        "        return self.head(torch.tanh(self.mix(self.words(x.long()))))\n"
    )
    x = np.load(folder / "s.npz")["x_train"]
    train, test = (np.concatenate([x[:45], x[:45]]), np.concatenate([x[45:], x[45:]]))
    after = [np.roll(part, -1, 1) for part in (train, test)]  # the label of a word is the next one
    np.savez(tmp_path / "s.npz", x_train=train, y_train=after[0], x_test=test, y_test=after[1])
    target = run(tmp_path, model="Tied")
    main = next(s for s in Tokens().attempt(target, 0).scores if s.main)
    assert main.value > 0.9
    assert main.floor < 0.9
    target.close()


def test_rows_shrink_together_and_rounding_is_no_change():
    before = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    after = (before * 0.9) * 0.97
    after[7] += 1e-3
    change = change_of(before, after)
    assert (change > 0).nonzero().flatten().tolist() == [7]
    assert read_off(change, torch.zeros(50))[1].nonzero().flatten().tolist() == [7]


def test_a_wide_gap_is_believed_and_a_narrow_one_is_not():
    frequent = torch.tensor([3, 0, 1, 0])
    sure, names = read_off(torch.tensor([1e-6, 2e-2, 0.5e-2, 1e-7]), frequent)
    assert names.tolist() == [False, True, True, False]
    assert sure.argsort(descending=True).tolist() == [1, 2, 0, 3]
    sure, _ = read_off(torch.tensor([0.0, 1.0, 0.0, 0.0]), frequent)
    assert sure[0] > sure[2] > sure[3]
    sure, names = read_off(torch.tensor([1.0, 4.0, 2.0, 7.0]), frequent)
    assert names.tolist() == [False, True, False, True]  # as many as the attacker's own samples hold
    assert sure.argsort(descending=True).tolist() == [3, 1, 2, 0]
