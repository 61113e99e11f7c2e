"""Parameters with `requires_grad=False` are constants of a run, as is batch normalisation among them."""

from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unskew
from unskew.config import build
from unskew.core.network import Network
from unskew.core.trees import flat_tree
from unskew.round import lane_views
from unskew.round.loop import remaining_rounds
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

SHAPE, CLASSES, N = (1, 6, 6), 3, 66
LANES = pytest.mark.parametrize("lanes", ["1", "16"])


def model() -> nn.Sequential:
    """A backbone with its normalisation, both frozen, and a part that trains and normalises."""
    torch.manual_seed(4)
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())
    norm = backbone[1]
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(8))  # type: ignore[union-attr]
        norm.running_var.copy_(0.5 + torch.rand(8))  # type: ignore[union-attr]
    backbone.requires_grad_(False)
    middle = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten())
    whole = nn.Sequential()
    for name, block in (("backbone", backbone), ("middle", middle), ("head", nn.Linear(128, CLASSES))):
        whole.add_module(name, block)
    return whole


def data() -> unskew.Dataset:
    rng = np.random.default_rng(2)
    y = np.arange(N) % CLASSES
    x = (rng.random((N, *SHAPE)) + 2.0 * y[:, None, None, None]).astype(np.float32)
    return unskew.data.arrays(x, y, x, y)


def trained(lanes: str, module: nn.Module, method: str = "fedavg", **options) -> unskew.Result:
    settings = {"rounds": 2, "clients": 4, "epochs": 2, "batch": 8, "lr": 0.05, "workers": 2}
    settings |= {"normalise": "none", "lanes": lanes, "device": "cpu", **options}
    return unskew.run(method, data(), model=module, **settings)


def floats(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: t for n, t in module.state_dict().items() if t.is_floating_point()}


@LANES
@pytest.mark.parametrize("method", ["scaffold", "fedbn", "moon"])
def test_nothing_that_is_frozen_changes_or_leaves(lanes, method):
    """M1: a frozen backbone used to be trained, and all of it was sent."""
    module = model()
    result = trained(lanes, module, method)
    after = floats(result.model)
    # FedBN's server never sees a norm
    held = ("backbone", "middle.1") if method == "fedbn" else ("backbone",)
    for name, before in floats(module).items():
        if name in after:  # MOON puts other layers in the head's place
            assert torch.equal(after[name], before) == name.startswith(held), name
    merged = [t.numel() for n, t in after.items() if not n.startswith(held)]
    assert {r["bytes"] for r in result.record.rows["ledger"] if r["share"] == "w"} == {4 * sum(merged)}
    assert not any(p.requires_grad for p in result.model.get_submodule("backbone").parameters())


@LANES
def test_a_run_is_what_torch_does_with_the_same_frozen_layers(lanes):
    """M1: one client, whole batches, against torch.optim, the frozen layers in evaluation mode."""
    module = model()
    result = trained(lanes, module, clients=1, batch=N, rounds=5, epochs=2, lr=0.1)
    plain = copy.deepcopy(module).double()
    optimiser = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    x, y = (torch.as_tensor(v) for v in (result.federation.x, result.federation.y))
    for _ in range(10):
        plain.train()
        plain.get_submodule("backbone").eval()
        optimiser.zero_grad()
        F.cross_entropy(plain(x.double()), y).backward()
        optimiser.step()
    for name, t in floats(plain).items():
        torch.testing.assert_close(floats(result.model)[name].double(), t, rtol=0, atol=1e-5, msg=name)
    guess = result.model(x).argmax(1)
    accuracy = float((guess == y).float().mean())
    assert result.scores("global")["last"] == pytest.approx(accuracy, abs=1e-5)
    assert accuracy > 0.4


def test_a_run_resumes_to_the_same_bits(tmp_path):
    """M1: through a checkpoint and a second process's start."""
    module = model()
    whole = trained("16", module, rounds=3)

    def stop(state, _):
        if state.t == 2:
            raise KeyboardInterrupt

    kept = {"name": "frozen", "folder": tmp_path, "rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        trained("16", module, shown=stop, **kept)
    assert trained("16", module, **kept).digest == whole.digest


class Watched(nn.Linear):
    """Notes at every pass of a training step whether its weight is stacked over the clients side by side."""

    stacked: ClassVar[set[bool]] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.stacked.add(torch._C._functorch.is_batchedtensor(self.weight))
        return super().forward(x)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("method", ["moon", "ditto+clip_gradients"])
def test_clients_side_by_side_have_one_copy_of_what_is_frozen(method, frozen, monkeypatch):
    """It was stacked, so that eight clients held eight copies of a backbone; MOON's clients kept one each,
    besides."""
    body, names, stack = (
        Watched(36, 8).requires_grad_(not frozen),
        set[str](),
        lane_views.ManyLanes.stack_weights,
    )
    monkeypatch.setattr(
        lane_views.ManyLanes, "stack_weights", lambda self, ws: names.update(*ws) or stack(self, ws)
    )
    given = {"clients": 4, "rounds": 2, "epochs": 1, "lanes": "8", "workers": 1, "normalise": "none"}
    settings = build({"method": method, **given})
    loop = loop_of(resolve(settings, data(), model=nn.Sequential(nn.Flatten(), body, nn.Linear(8, CLASSES))))
    names.clear()  # of the step that tries the model out
    Watched.stacked.clear()
    *_, state = remaining_rounds(loop, loop.begin(), lambda *_: None)
    assert Watched.stacked == {not frozen}
    assert ("1.weight" in names) == (not frozen)
    held = {**flat_tree(loop.store.fetch([0]).get(0, {})), **flat_tree(state.slices)}
    assert not (frozen and [path for path in held if path.endswith(("1.weight", "1.bias"))])
    assert torch.equal(state.weights["1.weight"], body.weight) == frozen


def test_batch_normalisation_is_frozen_with_the_module_it_is_in():
    """M1: a layer without parameters of its own says nothing about itself."""
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    module = nn.Sequential(body, nn.Linear(4, 2))
    assert Network(module, (4,)).norms >= {"0.1.running_mean", "0.1.running_var"}
    body.requires_grad_(False)
    net = Network(module, (4,))
    assert not net.norms
    assert net.constants == {"0.0.weight", "0.0.bias", "0.1.running_mean", "0.1.running_var"}
    assert net.copy().constants == net.constants


def test_buffers_that_layers_compute_from_their_settings_stay():
    """Frequencies of positions were sent and averaged, which changes their last bits."""
    layer = nn.Linear(4, 4)
    layer.register_buffer("frequencies", torch.rand(3))
    module = nn.Sequential(layer, nn.Linear(4, 2))
    assert Network(module, (4,)).buffers == ("0.frequencies",)
    layer.buffers_stay = True  # type: ignore[assignment]
    net = Network(module, (4,))
    assert net.constants == {"0.frequencies"}
    assert not net.buffers
