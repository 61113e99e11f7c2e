"""Models that begin with an embedding: their samples are whole numbers from the user's array to the table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew import data
from unskew.config import build
from unskew.data.clients.federation import Federation
from unskew.errors import UsageError
from unskew.runs.resolve import federation_of, resolve

WORDS, LENGTH, CLASSES, N = 200, 5, 3, 60
Y = np.arange(N) % CLASSES
X = (np.random.default_rng(4).integers(0, 60, (N, LENGTH)) + 65 * Y[:, None]).astype(np.int64)
LANES = pytest.mark.parametrize("lanes", ["1", "16"])


class Words(nn.Module):
    """A bag of words: its table's rows are looked up by whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.table, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x).mean(1))


def settings(method: str = "fedavg", **options):
    given = {"rounds": 2, "clients": 3, "epochs": 2, "batch": 8, "lr": 0.5, "device": "cpu", "workers": 1}
    return build({"method": method, "data": "(given)", "model": "(given)", **given, **options})


def trained(x: np.ndarray, **options) -> unskew.Result:
    chosen = {"rounds": 2, "clients": 3, "epochs": 2, "batch": 8, "lr": 0.5, "device": "cpu", "workers": 1}
    return unskew.run("fedavg", (x, Y, x, Y), model=Words(), **(chosen | options))


@LANES
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_tokens_of_any_type_are_looked_up_as_they_are(lanes, dtype):
    """Uint8 was divided by 255 and every token became 0; others were float32, which no embedding takes."""
    result = trained(X.astype(dtype), lanes=lanes)
    assert np.array_equal(result.federation.x, X)
    assert result.digest == trained(X, lanes=lanes, normalise="none").digest
    moved = (result.model.get_parameter("table.weight") - Words().table.weight).abs().sum(1) > 1e-4
    used = np.zeros(WORDS, dtype=bool)
    used[np.unique(X)] = True
    assert np.array_equal(moved.numpy(), used)
    guess = result.model(torch.as_tensor(X)).argmax(1).numpy()
    assert result.scores()["last"] == pytest.approx(float((guess == Y).mean()), abs=1e-5)


def test_a_model_in_a_file_is_known_before_samples_are_scaled(tmp_path):
    """Also where the settings only name it."""
    file = tmp_path / "words.py"
    file.write_text(
        "from torch import nn\n\n\nclass Words(nn.Module):\n"
        "    def __init__(self, classes):\n        super().__init__()\n"
        f"        self.table, self.head = nn.Embedding({WORDS}, 4), nn.Linear(4, classes)\n\n"
        "    def forward(self, x):\n        return self.head(self.table(x).mean(1))\n\n\n"
        "def make(shape, classes):\n    return Words(classes)\n"
    )
    x = X.astype(np.uint8)
    federation = federation_of(settings(model=f"{file}:make"), unskew.Method(), data.arrays(x, Y, x, Y))
    assert np.array_equal(federation.x, X)
    assert all(topic != "scaled" for topic, _ in federation.intake.notes)


def test_fractions_are_never_looked_up():
    """Where samples were scaled before anybody knew of the model, the run is refused."""
    x = (X / 255).astype(np.float32)
    whole = federation_of(settings(normalise="none"), unskew.Method(), data.arrays(x, Y, x, Y))
    assert isinstance(whole, Federation)
    with pytest.raises(UsageError, match=r"E123.*an embedding looks up whole numbers, and is given 0\.\d+"):
        resolve(settings(), whole, model=Words())
    with pytest.raises(UsageError, match="E109 normalise=dataset would scale the whole numbers"):
        trained(X, normalise="dataset")


@pytest.mark.parametrize("method", ["fedmix", "naivemix", "fedbr", "norm"])
def test_methods_that_compute_with_inputs_are_refused(method):
    """An average of two words is no word."""
    with pytest.raises(UsageError, match=f"E108 '{method}' cannot run here"):
        resolve(settings(method), data.arrays(X, Y, X, Y), model=Words())


def test_what_words_are_numbered_changes_nothing_flea_trains_or_measures():
    """The distance of two words was that of their numbers."""
    numbers = torch.as_tensor(np.random.default_rng(5).permutation(WORDS))

    class Renumbered(Words):
        def __init__(self) -> None:
            super().__init__()
            table = self.table.weight.detach().clone()
            self.table.weight.data[numbers] = table

    def of(x: np.ndarray, model: nn.Module) -> unskew.Result:
        given = {"rounds": 3, "clients": 3, "epochs": 2, "batch": 8, "lr": 0.5, "device": "cpu", "workers": 1}
        given |= {"measure": "correlation", "eval_every": 1, "lanes": "16"}
        return unskew.run("flea(lambda2=10)", (x, Y, x, Y), model=model, **given)

    one, other = of(X, Words()), of(numbers[torch.as_tensor(X)].numpy(), Renumbered())
    torch.testing.assert_close(one.model.table.weight, other.model.table.weight[numbers], rtol=0, atol=1e-5)
    correlations = [
        [row["value"] for row in result.record.rows["metrics"] if row["metric"] == "correlation"]
        for result in (one, other)
    ]
    assert len(correlations[0]) > 1
    assert correlations[0] == pytest.approx(correlations[1], abs=1e-5)
