"""Numbers and several labels a sample through Flower's own messages, with the simulator's bits."""

from __future__ import annotations

import pytest

import unskew
from tests.federation import fake
from tests.tasks import test_multilabel, test_regression
from unskew.records.checkpoints import digest

pytestmark = pytest.mark.flower


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_the_same_bits_through_flower(tmp_path, task, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    from unskew.federation.coordinator.mailbox import FlowerChannel

    whole, metrics = test_multilabel.five(), "none"
    if task == "regression":
        whole, target = test_regression.five()
        metrics = "r2,median_error"
        monkeypatch.setattr(fake, "data_of", lambda of, k: test_regression.site_data(of, k, target))
    settings = fake.small("fedavg", rounds=2, lr=0.01).replace(metrics=metrics)
    grid = fake.grid_of(fake.sites(tmp_path / "sites", whole))
    loop, state, _ = fake.run(tmp_path / "run", FlowerChannel(grid), settings, deadline_s=60)
    alone = unskew.run(
        "fedavg", whole, **{n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    )
    assert digest(state.weights) == alone.digest
    for metric in ("mean", "auroc", "r2", "median_error"):
        expected = alone.record.series("global@client", metric)[1]
        assert loop.record.series("global@client", metric)[1] == pytest.approx(expected, rel=1e-5), metric
    assert not [e["text"] for e in loop.record.rows["events"] if e["code"] != "round"]
