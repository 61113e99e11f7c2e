"""`Result.predict` takes samples as they were given, and answers as the run's own scores say."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from tests.report.fake_runs import fake_comparison
from unskew.errors import DataError, UsageError
from unskew.records import checkpoints
from unskew.report.analysis.runs import read_comparison
from unskew.runs.predictions import _scaled_twice

N, C = 60, 3
RNG = np.random.default_rng(3)
Y = np.arange(N) % C
ROWS = (RNG.normal(size=(N, 5)) * 40 + 300 + 60 * Y[:, None]).astype(np.float32)
IMAGES = (RNG.integers(0, 120, size=(N, 3, 8, 8)) + 40 * Y[:, None, None, None]).astype(np.uint8)
SETTINGS = {"rounds": 2, "epochs": 2, "clients": 3, "workers": 1, "skew": "iid", "lanes": "1"}


def halves(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    return x[:40], y[:40], x[40:], y[40:]


@pytest.mark.parametrize(
    ("method", "x", "words"),
    [
        ("fedavg", ROWS, True),
        ("fedrdn", IMAGES, True),
        ("norm", IMAGES / np.float32(255), False),
        ("fedproto", IMAGES, False),
    ],
)
def test_predictions_from_samples_as_given_have_the_score_of_the_run(method, x, words):
    """Only the standardised samples gave the reported score, and nothing said by which constants."""
    y = np.array(["red", "green", "blue"])[Y] if words else Y
    data = halves(x, y)
    result = unskew.run(method, data, **SETTINGS)
    guess = result.predict(torch.tensor(data[2]) if words else data[2])
    assert (guess == data[3]).mean() == pytest.approx(result.scores()["last"], abs=1e-6)
    p = result.predict_proba(data[2])
    assert p.shape == (20, C)
    assert np.allclose(p.sum(1), 1, atol=1e-5)
    assert (np.array(result.federation.classes)[p.argmax(1)] == guess.astype(str)).all()


def test_masks_are_predicted_pixel_by_pixel():
    x = RNG.random((24, 1, 8, 8)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    result = unskew.run("fedavg", (x[:16], y[:16], x[16:], y[16:]), model=nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)), **SETTINGS)  # fmt: skip
    guess = result.predict(x[16:])
    assert guess.shape == (8, 8, 8)
    assert result.run.task.scores(guess, y[16:], 2)["dice"] == pytest.approx(
        result.scores()["last"], abs=1e-6
    )


def test_the_file_of_the_model_says_how_inputs_are_scaled(tmp_path):
    """Neither the folder nor the file of the model held the constants of standardisation."""
    result = unskew.run("fedavg", halves(ROWS, Y), name="s", folder=tmp_path, **SETTINGS)
    inputs = checkpoints.read(tmp_path / "s" / "model.safetensors")[1]["inputs"]
    mean, std = np.array(inputs["mean"], np.float32), np.array(inputs["std"], np.float32)
    assert np.allclose(mean, ROWS[:40].mean(0), rtol=1e-4)
    assert inputs["classes"] == ["0", "1", "2"]
    with torch.no_grad():
        z = result.model(torch.tensor((ROWS[40:] - mean) / std))
    assert (z.argmax(1).numpy() == result.predict(ROWS[40:])).all()
    summary = json.loads((tmp_path / "s" / "federation.json").read_text())
    assert summary["mean"] == inputs["mean"]


def test_samples_of_another_kind_are_refused():
    result = unskew.run("fedavg", halves(IMAGES, Y), model="mlp", **(SETTINGS | {"rounds": 1}))
    for x, says in (
        (IMAGES / np.float32(255), "samples are float32, those of training were uint8"),
        (IMAGES[:, :, :4], r"samples are \[3, 4, 8\]"),
        (IMAGES[0], r"samples are \[8, 8\]"),
    ):
        with pytest.raises(DataError, match=f"E403 predict: {says}"):
            result.predict(x)


def test_where_clients_keep_weights_nothing_predicts_alone():
    result = unskew.run("local", halves(ROWS, Y), **(SETTINGS | {"rounds": 1}))
    with pytest.raises(UsageError, match=r"E131 .*every client keeps weights"):
        result.predict(ROWS)
    assert [row["client"] for row in result.clients()] == [0, 1, 2]
    assert sum(row["train"] for row in result.clients()) == 40
    assert all(row["accuracy"] is not None for row in result.clients())


def test_a_client_is_named_or_refused():
    result = unskew.run("fedrdn", halves(IMAGES, Y), **(SETTINGS | {"rounds": 1}))
    assert (result.predict_proba(IMAGES, "client-1") == result.predict_proba(IMAGES, 1)).all()
    assert (result.predict_proba(IMAGES, 1) != result.predict_proba(IMAGES)).any()
    with pytest.raises(UsageError, match="E109 there is no client 'client-7'"):
        result.predict(IMAGES, "client-7")


def test_a_comparison_is_loaded_with_the_rows_of_all_its_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    path = fake_comparison(tmp_path / "c", ["fedavg", "flea"], 2, clients=3, rounds=4)
    compared = unskew.load(path)
    assert isinstance(compared, unskew.Comparison)
    rows = compared.to_frame("metrics")
    assert {(row["method"], row["seed"]) for row in rows} == {
        (m, s) for m in ("fedavg", "flea") for s in (0, 1)
    }
    best = max(compared.to_frame(), key=lambda row: row["last.mean"])
    last = [
        row["value"]
        for row in rows
        if row["method"] == best["method"]
        and (row["t"], row["scope"], row["metric"]) == (4, "global", "accuracy")
    ]
    assert best["last.mean"] == pytest.approx(np.mean(last))
    clients = compared.to_frame("clients")
    assert len(clients) == 2 * 2 * 3
    assert {(row["client"], row["name"]) for row in clients} == {(k, f"client-{k}") for k in range(3)}
    sent = sum(row["bytes"] for row in compared.to_frame("ledger"))
    assert sent == sum(run.bytes_by_round()[1][-1] for run in read_comparison(path))
    with pytest.raises(UsageError, match="E109 there is no kind of frame 'rounds'"):
        compared.to_frame("rounds")
    with pytest.raises(UsageError, match=r"E109 .*c holds a comparison, of which each run is a folder"):
        unskew.load(path, best=True)


def test_samples_that_seem_to_be_scaled_already_are_told_with_their_own_units():
    """Channel 0 was scaled by mean 5 and deviation 2, channel 1 by 0 and 1, which changes nothing."""
    form = {"kind": "table", "columns": [["age", []], ["sex", []]]}
    trained: Any = SimpleNamespace(
        applied=((5.0, 0.0), (2.0, 1.0)),
        layout=None,
        masks=False,
        shape=(2,),
        intake=SimpleNamespace(form=form),
    )
    even = np.tile([[-0.5], [0.5]], (5, 1)).astype(np.float32)

    def said(first: float, second: float = 0.0, spread: float = 1.0, count: int = 10) -> str:
        x = np.concatenate([spread * even + first, even + second], axis=1)
        return _scaled_twice(trained, x[:count])

    assert not said(-2.9)
    own = (
        "column 'age' of these samples has mean -3 and standard deviation 1, that of the training samples"
        " mean 5 and standard deviation 2"
    )
    assert said(-4.0).startswith(own)
    assert said(4.0).startswith("column 'age' of these samples has mean 13 and")
    assert said(0.0, spread=8.0).startswith("column 'age' of these samples has mean 5 and standard")
    assert not said(0.0, second=100.0)
    assert not said(-4.0, count=9)


def test_a_fraction_of_a_word_is_refused_and_not_cut_down_to_a_whole_one():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.words(x).mean(1))

    words = np.random.default_rng(0).integers(0, 9, (30, 5))
    settings = {"rounds": 1, "epochs": 1, "workers": 1, "lanes": "1", "skew": "iid", "clients": 2}
    result = unskew.run("fedavg", (words, np.arange(30) % 3), model=Words(), **settings)
    assert np.array_equal(result.predict(words.astype(float)), result.predict(words))
    for value, says in ((1.5, "1.5"), (np.nan, "nan")):
        x = words.astype(float)
        x[7, 2] = value
        with pytest.raises(DataError, match=f"E405 predict: sample 7 holds {says}"):
            result.predict(x)


def test_a_model_that_has_diverged_predicts_nothing():
    result = unskew.run("fedavg", halves(ROWS, Y), **(SETTINGS | {"rounds": 1}))
    next(iter(result.trained.end.weights.values())).fill_(float("inf"))
    with pytest.raises(UsageError, match=r"E131 .*NaN or infinity.* a lower lr"):
        result.predict(ROWS)


def test_a_model_may_rule_a_class_out():
    result = unskew.run("fedavg", halves(ROWS, Y), model="mlp", **(SETTINGS | {"rounds": 1}))
    result.trained.end.weights["head.bias"][0] = -float("inf")
    assert (result.predict_proba(ROWS)[:, 0] == 0).all()
