"""How many clients train side by side on a CPU follows from how small a step of one is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from unskew.config import Settings
from unskew.core.network import Network
from unskew.errors import UsageError
from unskew.runs.hardware import MOST_LANES, ProductCounter, is_small, lanes_of


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def broad() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.Flatten(), nn.Linear(36864, 10)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1).unflatten(1, (-1, 8)))[0][:, -1])


def auto(net: Network, batch: int = 32) -> int:
    return lanes_of(Settings(batch=batch), net, "cpu")


def test_models_with_small_steps_train_side_by_side_and_those_with_large_ones_do_not():
    assert auto(Network(lenet(), (1, 28, 28))) == MOST_LANES
    assert auto(Network(broad(), (3, 32, 32))) == 1


def test_a_large_batch_makes_a_step_large():
    net = Network(lenet(), (1, 28, 28))
    assert auto(net, 128) == MOST_LANES  # 53 million products
    assert auto(net, 160) == 1


def test_large_weights_make_a_step_large_whatever_is_multiplied():
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(784, 700), nn.Linear(700, 10)), (1, 28, 28))
    assert not is_small(net, 1)  # 0.56 million products a sample, and 2.2 MB of weights eight times


def test_of_a_large_model_nothing_is_copied_or_computed(monkeypatch):
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(784, 700), nn.Linear(700, 10)), (1, 28, 28))
    monkeypatch.setattr(Network, "copy", lambda self: pytest.fail("copied"))
    assert not is_small(net, 1)


def test_activations_make_a_step_large_whatever_is_multiplied():
    layers = [nn.Conv2d(1, 1, 1), *[nn.Tanh() for _ in range(40)], nn.Flatten(), nn.Linear(784, 10)]
    net = Network(nn.Sequential(*layers), (1, 28, 28))
    assert is_small(net, 32)
    assert not is_small(net, 160)  # 3 kB a layer and sample


def test_a_model_says_for_itself_whether_it_pays():
    net = Network(lenet(), (1, 28, 28))
    net.folds = False
    assert auto(net) == 1


def test_products_are_those_of_convolutions_and_dense_layers():
    counter = ProductCounter()
    with counter, torch.no_grad():
        lenet()(torch.zeros(2, 1, 28, 28))
    assert counter.count == 2 * (28 * 28 * 6 * 25 + 10 * 10 * 16 * 150 + 400 * 84 + 84 * 10)


def test_looking_at_a_model_changes_neither_it_nor_random_numbers():
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(1352, 10)
    )
    net = Network(module, (1, 28, 28))
    before, state = net.weights(), torch.get_rng_state()
    is_small(net, 32)
    assert all(torch.equal(t, before[n]) for n, t in net.weights().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("module", [Recurrent(), nn.Sequential(nn.Flatten(), nn.Linear(3, 10))])
def test_what_cannot_run_is_left_to_the_trial_of_the_model(module: nn.Module):
    assert auto(Network(module, (1, 8, 8))) in (1, MOST_LANES)


def test_nobody_is_told_of_one_lane_who_did_not_ask_for_more():
    x = np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32)
    data = unskew.data.arrays(x, np.arange(12) % 3, x, np.arange(12) % 3)
    for lanes, codes in (("auto", []), ("4", ["E128"])):
        result = unskew.run(
            "fedavg",
            data,
            model=Recurrent(),
            lanes=lanes,
            clients=2,
            rounds=1,
            batch=4,
            skew="iid",
            normalise="none",
        )
        assert result.run.lanes == 1
        one_lane = [e["code"] for e in result.record.rows["events"] if "lanes=1" in e.get("text", "")]
        assert one_lane == codes


def test_a_layer_that_no_sample_can_have_to_itself_is_named_with_the_way_out():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torch.nn.TransformerEncoderLayer(4, 1, 4, dropout=0.1, batch_first=True)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.block(x[:, None]).mean(1))

    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
    with pytest.raises(UsageError, match=r"E108 .*dropout=0\.0"):
        unskew.run("dpsgd", (x, y), model=Attention(), clients=2, skew="iid", rounds=1)
