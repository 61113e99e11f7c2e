"""Gradient: a client's update gives labels and, of few samples under a smooth model, the samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.attacks.runs import trained
from unskew.attacks import inversion
from unskew.attacks.kinds.gradient import Gradient
from unskew.attacks.target_run import TargetRun
from unskew.core.network import Network
from unskew.methods import registry
from unskew.runs import conformance
from unskew.runs.reopen import UserCode

SMOOTH = """
from torch import nn

def smooth(input_shape, classes):
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * height * width, classes)
    )
"""


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smooth")
    (folder / "smooth.py").write_text(SMOOTH)
    model = f"{folder / 'smooth.py'}:smooth"
    target = TargetRun(
        trained(folder, model=model, clients=4, samples=5, rounds=2), code=UserCode(model=model)
    )
    yield target
    target.close()


def values(target: TargetRun, **settings) -> dict[str, float]:
    return {s.metric: s.value for s in Gradient(**settings).attempt(target, 0).scores}


def test_one_samples_update_gives_its_label_and_the_sample(smooth):
    scores = values(smooth, samples=2, at="first", steps=100)
    assert scores["labels recovered"] == 1
    assert scores["PSNR, dB"] > 20


UNITS = """
from torch import nn

def units(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, classes))
"""


def test_a_dense_layer_of_the_input_gives_a_sample_exactly(tmp_path):
    """dW_u / db_u = x for every unit u that one sample moves; an inversion of one step is far from that."""
    (tmp_path / "units.py").write_text(UNITS)
    model = f"{tmp_path / 'units.py'}:units"
    target = TargetRun(trained(tmp_path, model=model), code=UserCode(model=model))
    alone = values(target, samples=4, at="first", steps=1)
    assert alone["PSNR, dB"] > 60
    assert alone["share above 40 dB"] == 1
    assert values(target, samples=16, batch=8, at="first", steps=1)["share above 40 dB"] > 0
    target.close()


def test_what_scaffold_sends_beside_weights_gives_samples_exactly(tmp_path):
    """Its corrections hide samples in an update; the changes of a control variate add up to a gradient."""
    (tmp_path / "units.py").write_text(UNITS)
    model = f"{tmp_path / 'units.py'}:units"
    path = trained(tmp_path, "scaffold", model=model, samples=4, batch=1, rounds=3)
    target = TargetRun(path, code=UserCode(model=model))
    outcome = Gradient(samples=6, batch=0, steps=1).attempt(target, 0)
    shares = {s.payload: s.value for s in outcome.scores if s.metric == "share above 40 dB"}
    assert shares["scaffold/delta"] > 0.8 > shares["w"]
    target.close()


def test_a_control_variate_without_answers_counts_as_the_guess(tmp_path, monkeypatch):
    """Only clients whose variates gave an answer for every sample were scored."""
    (tmp_path / "units.py").write_text(UNITS)
    model = f"{tmp_path / 'units.py'}:units"
    path = trained(tmp_path, "scaffold", model=model, samples=4, batch=1, rounds=3)
    target = TargetRun(path, code=UserCode(model=model))
    monkeypatch.setattr(inversion.Inversion, "read_off", lambda self, update, own: own[:0])
    outcome = Gradient(samples=6, batch=0, steps=1).attempt(target, 0)
    target.close()
    (error,) = (s for s in outcome.scores if (s.payload, s.metric) == ("scaffold/delta", "MSE"))
    (weights,) = (s for s in outcome.scores if (s.payload, s.metric) == ("w", "MSE"))
    assert error.n == weights.n
    assert error.value == pytest.approx(error.floor, rel=1e-4)


def test_of_two_samples_the_units_that_one_moves_give_it_and_the_others_a_mixture():
    """By hand: unit 0 has gradient 2 from x_1 alone, unit 1 has 1 and 3 from both, so (x_1 + 3 x_2) / 4, and
    unit 2 has 1 and -2, which is x_1 / -1 + 2 x_2, beyond the range. Unit 3 has none."""
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(2, 4), nn.Linear(4, 2)), (2,))
    g_UN, x_N2 = torch.tensor([[2.0, 0], [1, 3], [1, -2], [0, 0]]), torch.tensor([[0.2, 0.4], [0.6, 0.8]])
    before = net.weights()
    after = {**before, "1.weight": before["1.weight"] - 0.1 * g_UN @ x_N2}
    after["1.bias"] = before["1.bias"] - 0.1 * g_UN.sum(1)
    run = SimpleNamespace(task=None, fed=SimpleNamespace(classes=2, shape=(2,)))
    own = torch.tensor([[0.0, 0.0], [0.9, 0.9], [0.5, 0.2]])
    attack = inversion.Inversion(net, run, (1, 0.0, 0.1), inversion.Search.like(own))
    answers = attack.read_off(inversion.Update(before, after, 0.1, 2, 1), own)
    torch.testing.assert_close(answers, torch.tensor([[0.2, 0.4], [0.5, 0.7]]), atol=1e-4, rtol=0)


def test_an_update_as_it_was_sent_is_inverted(smooth):
    attack = Gradient(samples=2, batch=0, steps=60)
    outcome = attack.attempt(smooth, 0)
    scores = {s.metric: s for s in outcome.scores}
    assert scores["MSE"].of == "updates as sent"
    assert scores["MSE"].n == 5
    assert scores["MSE"].value < scores["MSE"].floor
    assert not [s.doubt for s in outcome.scores if s.doubt]


@pytest.mark.parametrize("name", ["fedala", "fedcac"])
def test_clients_that_start_elsewhere_than_all_are_sent_are_not_attacked(name):
    run = conformance.run_for(registry.parse(name))
    reason = Gradient().refuse(SimpleNamespace(run=run, sent=run.fed.net.trainable))
    assert "start from weights of their own" in reason


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("dpsgd(clip=0.1,noise_multiplier=8.0)", "dpsgd"),
        ("topk", "topk"),
        ("fedspeed", "fedspeed"),
        ("fedprox", ""),
    ],
)
def test_clients_that_are_made_up_stand_for_none_whose_updates_are_changed_before_they_leave(method, part):
    """With noise of eight clips the attack gave images back at 24 dB: those of clients without noise."""
    run = conformance.run_for(registry.parse(method))
    target = SimpleNamespace(run=run, sent=run.fed.net.trainable)
    reason = Gradient().refuse(target)
    if not part:
        assert reason is None
        return
    assert (
        reason
        == f"'{part}' changes what its clients send, and not what clients that are made up for the attack"
        " would; set batch=0, which attacks updates as they were sent"
    )


def test_noise_is_in_an_update_as_it_was_sent(tmp_path):
    pytest.importorskip("dp_accounting")
    target = TargetRun(trained(tmp_path, "dpsgd(clip=0.1,noise_multiplier=8.0)", samples=4))
    scores = {s.metric: s for s in Gradient(samples=2, batch=0, steps=40).attempt(target, 0).scores}
    target.close()
    assert scores["MSE"].value > scores["MSE"].floor


def test_counts_are_rounded_to_the_number_of_samples():
    assert inversion.round_counts(torch.tensor([1.6, 0.7, -0.3, 0.7]), 3).tolist() == [0, 1, 3]
    assert inversion.round_counts(torch.tensor([0.0, 4.0]), 2).tolist() == [1, 1]
