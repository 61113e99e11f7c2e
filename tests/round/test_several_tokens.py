"""Labels at every place of one of several inputs: token ids with an attention mask and an age, each token
with its kind.

Likely mistakes: a label that repeats its token, rows of another length, padding that counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.federation import fake
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.federation.site.site import Site, SiteIdentity
from unskew.records.checkpoints import digest

N, T = 60, 6
RNG = np.random.default_rng(5)
IDS = RNG.integers(0, 12, (N, T))
PRESENT = np.arange(T) < RNG.integers(3, T + 1, N)[:, None]
AGES = RNG.normal(60, 9, N).astype(np.float32)
KINDS = np.where(PRESENT, IDS % 3, -100)
WORDS = {"input_ids": IDS, "attention_mask": PRESENT, "age": AGES}
SETTINGS = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 8, "workers": 1, "skew": "iid", "lr": 0.3}
MODULE = """
import torch
from torch import nn

class Tagger(nn.Module):
    def __init__(self, shapes=None, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.body, self.head = nn.Embedding(12, 8), nn.Linear(9, 16), nn.Linear(16, classes)

    def forward(self, input_ids, attention_mask, age):
        h = self.table(input_ids) * attention_mask[..., None]
        return self.head(self.body(torch.cat([h, age[:, None, None].expand(-1, h.shape[1], 1)], -1)).relu())
"""
names: dict[str, Any] = {}
exec(MODULE, names)
Tagger = names["Tagger"]


class Ids(nn.Module):
    """Of ids alone; named or not is one to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(12, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x))


def trained(given: Any = WORDS, y: Any = KINDS, model: nn.Module | None = None, **more: Any) -> unskew.Result:
    return unskew.run(
        more.pop("method", "fedavg"), (given, y), model=model or Tagger(), **{**SETTINGS, **more}
    )


@pytest.mark.parametrize(("method", "lanes"), [("scaffold", "1"), ("fedrep", "4")])
def test_one_named_input_of_tokens_has_the_bits_of_tokens(method, lanes):
    named, plain = (trained(x, model=Ids(), method=method, lanes=lanes) for x in ({"x": IDS}, IDS))
    assert named.digest == plain.digest
    assert named.scores() == plain.scores()


def test_tokens_are_learnt_and_lanes_bound_what_they_change():
    one, many = (trained(epochs=8, lanes=lanes) for lanes in ("1", "4"))
    assert one.run.task.name == "tokens"
    assert one.scores()["last"] == many.scores()["last"] > 0.9
    for a, b in zip(one.model.parameters(), many.model.parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_sites_end_with_the_bits_of_the_simulator(tmp_path):
    (tmp_path / "net.py").write_text(MODULE)
    rows = [np.arange(25), np.arange(25, 60)]
    model = f"{tmp_path}/net.py:Tagger"
    settings = fake.small("fedavg", clients=2, model=model)
    scaled = WORDS | {"age": (AGES - 60) / 9}

    def held(which: Any) -> Dataset:
        part = {name: values[which] for name, values in scaled.items()}
        return unskew.data.arrays(part, KINDS[which], part, KINDS[which], classes=("a", "b", "c"))

    sites = {}
    for k, each in enumerate(rows):
        (tmp_path / f"s{k}").mkdir()
        member = SiteIdentity(f"s{k}", Path(tmp_path / f"s{k}"), fake.KEYS[f"s{k}"], fake.COORDINATOR.public)
        fake.OPEN.write(tmp_path / f"s{k}")
        sites[1000 - k] = Site(member, lambda each=each: held(each), model=model, approve="all")
    _, end, _ = fake.run(tmp_path / "run", fake.Direct(sites), settings)
    whole, index = held(slice(None)), Index.of(rows)
    parts = (whole.x, whole.y, whole.x_test, whole.y_test, whole.classes)
    federation = Federation("sites", *parts, index, index, "iid", layout=whole.layout)
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data", "model")}
    assert digest(end.weights) == unskew.run("fedavg", federation, model=model, **left).digest
