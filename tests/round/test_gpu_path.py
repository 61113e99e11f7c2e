"""What a GPU does, as far as a machine without one can tell: whole rounds on shapes alone, recorded steps,
batched layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.round.training import build, trainer
from tests.samples import EVERYTHING, turn
from unskew import config, data, models
from unskew.core.network import Network
from unskew.core.replies import Reply
from unskew.core.trees import tree_map
from unskew.methods import registry
from unskew.round import run
from unskew.round.chunks import Recipe, chunks
from unskew.round.clients import Broadcast
from unskew.round.precision import device_mode
from unskew.round.recordings import StepRecordings
from unskew.round.trainer import Trainer
from unskew.round.vmap_layers import Convolution
from unskew.runs import assemble, hardware, resolve

SHAPE = (3, 8, 8)
ASK_ONCE_A_ROUND = {"feddpms", "svd"}
"""The `noise` of one reads the slice that the server sent, before any step; how much the other sends after
its steps depends on what the client has learnt."""


def arrays() -> data.Dataset:
    rng = np.random.default_rng(3)
    y, y_test = rng.integers(0, 5, 240), rng.integers(0, 5, 40)
    x, x_test = rng.random((240, *SHAPE), np.float32), rng.random((40, *SHAPE), np.float32)
    return data.arrays(x, y, x_test, y_test)


@pytest.mark.parametrize(
    ("method", "lanes"),
    [
        (method, lanes)
        for method in sorted(set(registry.names()) - ASK_ONCE_A_ROUND)
        for lanes in (("4", "1") if EVERYTHING else ("4", "4", "1")[turn(method, 3)])
    ],
)
def test_a_round_of_any_method_asks_no_tensor_for_its_value(method, lanes):
    """Tensors on `meta` have shapes and no values: to read one, or to mix devices, raises; on a GPU it would
    wait."""
    model = "cnn_small(batch_norm=True)" if method == "fedbn" else "cnn_small"
    given = {"rounds": 2, "epochs": 1, "batch": 8, "clients": 4, "samples": 12, "workers": 1}
    replies = on_shapes(
        resolve.resolve(config.build({**given, "model": model, "lanes": lanes, "method": method}), arrays())
    )
    assert [r.client for r in replies] == [0, 1, 2, 3]
    assert all(t.is_meta for r in replies for t in r.weights.values())


def on_shapes(run: run.Run) -> list[Reply]:
    """The replies of a first round of four clients on tensors that have shapes only."""
    loop = assemble.loop_of(run)
    start, real = loop.down(loop.begin(), 1), loop.trainer
    real.close()

    def shape_of(t: Tensor) -> Tensor:
        return torch.empty_like(t, device="meta")

    samples = replace(real.samples, x=shape_of(real.samples.x), y=shape_of(real.samples.y))
    trainer_ = Trainer(run.method, run.fed, samples, real.training, run.lanes)

    def sent(k: int) -> tuple[Any, Any]:
        there = start.to(k)
        return tree_map(shape_of, there.weights), tree_map(shape_of, there.down)

    there = Broadcast(1, start.lr, *sent(-1), own=sent if start.own else None)
    replies = trainer_.train(there, range(4), {})
    trainer_.close()
    return replies


class Plain:
    """Records a step by remembering what is to be called. why: what `watch` says. breaks: whether recording
    fails."""

    calls_before, exact = 1, False

    def __init__(self, why: str = "", breaks: bool = False):
        self.why, self.breaks, self.watched, self.recorded, self.replayed = why, breaks, 0, 0, 0

    def watch(self, function: Callable[[], None]) -> str:
        self.watched += 1
        function()
        return self.why

    def record(self, function: Callable[[], None]) -> Callable[[], None] | str:
        function()
        if self.breaks:
            return "operation not permitted when stream is capturing"
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            function()

        return replay


def weights_after(
    method: str, recorder: Plain | None, lanes: str = "8", rounds: int = 3, **more: Any
) -> dict[str, Tensor]:
    """The weights after some rounds with a learning rate that falls."""
    given = {
        "rounds": rounds,
        "epochs": 2,
        "batch": 8,
        "clients": 6,
        "samples": 16,
        "workers": 1,
        "lr_decay": 0.5,
    }
    given |= {"model": "cnn_small", "lanes": lanes, "method": method, **more}
    return weights_of(resolve.resolve(config.build(given), arrays()), recorder, rounds)


def weights_of(run: run.Run, recorder: Plain | None, rounds: int) -> dict[str, Tensor]:
    loop = assemble.loop_of(run)
    loop.trainer.replays = StepRecordings(recorder) if recorder else None
    state = loop.begin()
    for t in range(1, rounds + 1):
        state, _ = loop.round(state, t)
    loop.trainer.close()
    return state.weights


@pytest.fixture
def rate_as_tensor(monkeypatch):
    """As on a GPU, so that replayed steps and others have the same bits."""
    monkeypatch.setattr("unskew.round.trainer.Update._rate", lambda update: torch.tensor(update.start.lr))


METHODS = ["fedavg", "scaffold", "fedsmoo", "flea", "moon", "fedrdn", "flea(variant=official)", "fedmix"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("rate_as_tensor")
def test_replayed_steps_end_with_the_same_bits(method):
    recorder = Plain()
    plain, replayed = weights_after(method, None), weights_after(method, recorder)
    assert all(torch.equal(plain[n], replayed[n]) for n in plain)
    assert recorder.recorded
    assert recorder.replayed > recorder.recorded


@pytest.mark.usefixtures("rate_as_tensor")
def test_steps_that_weights_took_in_earlier_rounds_count_no_more_in_replayed_ones():
    given = {"optimiser": "adam", "lr": 0.001}
    plain, replayed = (
        weights_after("fedrep", None, **given),
        weights_after("fedrep", recorder := Plain(), **given),
    )
    assert recorder.replayed
    assert all(torch.equal(plain[n], replayed[n]) for n in plain)


@pytest.mark.usefixtures("rate_as_tensor")
@pytest.mark.parametrize("recorder", [Plain(why="mine.py, line 3 waits for the GPU"), Plain(breaks=True)])
def test_steps_that_cannot_be_recorded_are_all_taken(recorder):
    plain, taken = weights_after("fedavg", None, "1"), weights_after("fedavg", recorder, "1")
    assert all(torch.equal(plain[n], taken[n]) for n in plain)
    assert not recorder.recorded


def trained(
    recorder: Plain | None, name: str = "cnn_small", **given: Any
) -> tuple[Trainer, dict[str, Tensor]]:
    """(the trainer, weights and losses of all replies of two rounds)."""
    made, start = trainer(build(name, SHAPE), SHAPE, **given)
    made.replays = StepRecordings(recorder) if recorder else None
    replies = [r for t in (1, 2) for r in made.train(replace(start, t=t), range(len(given["sizes"])), {})]
    made.close()
    return made, {
        f"{i}/{n}": w for i, r in enumerate(replies) for n, w in {**r.weights, "loss": r.loss}.items()
    }


UNEQUAL = (40, 20, 13, 12, 11, 10)
"""Two at a time: a lane that only fills up, and several chunks of the same shapes with other padding."""


@pytest.mark.usefixtures("rate_as_tensor")
def test_what_steps_leave_behind_does_not_reach_the_next_update():
    """Momentum, losses, padding and lanes at rest of one chunk are not those of the next, which has the same
    shapes."""
    given = {"sizes": UNEQUAL, "lanes": 2, "momentum": 0.9}
    (_, plain), (_, replayed) = trained(None, **given), trained(recorder := Plain(), **given)
    assert recorder.replayed
    assert all(torch.equal(plain[n], replayed[n]) for n in plain)


def test_a_model_that_draws_for_itself_is_not_recorded():
    """A recording would repeat what was drawn when it was made."""
    made, start = trainer(build("cnn_small", SHAPE), SHAPE)
    made.fed.net.draws = True
    made.replays = StepRecordings(recorder := Plain())
    made.train(start, [0, 1], {})
    made.close()
    assert not recorder.watched


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [
        ((5, 5), 1, 0, 1, 1),
        ((6, 1), (2, 1), (1, 0), 1, 1),
        ((3, 3), 2, 1, (2, 1), 2),
        ((1, 1), 1, 0, 1, 1),
        ((1, 1), 2, 0, 1, 1),
        ((1, 1), 1, 1, 1, 1),
    ],
)
def test_batched_convolutions_and_their_gradients_are_those_of_grouped_ones(
    kernel, stride, padding, dilation, groups
):
    G, B, C, O = 3, 2, 4, 6
    g = torch.Generator().manual_seed(1)
    x = torch.randn(B, G, C, 12, 11, generator=g, dtype=torch.float64).requires_grad_()
    w = torch.randn(G, O, C // groups, *kernel, generator=g, dtype=torch.float64).requires_grad_()
    b = torch.randn(G, O, generator=g, dtype=torch.float64).requires_grad_()
    grouped = F.conv2d(x.flatten(1, 2), w.flatten(0, 1), b.flatten(), stride, padding, dilation, G * groups)
    pairs = ((v, v) if isinstance(v, int) else v for v in (stride, padding, dilation))
    batched = Convolution(F.conv2d, *pairs).batched(x.permute(1, 2, 0, 3, 4), w, b, groups)
    expected = grouped.unflatten(1, (G, O)).permute(1, 2, 0, 3, 4)
    torch.testing.assert_close(batched, expected, rtol=1e-12, atol=1e-12)
    towards = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad(y, [x, w, b], towards) for y in (batched, expected))):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_lanes_follow_from_memory():
    net = Network(models.build("cnn_small", SHAPE, 4), SHAPE)
    each = hardware.lane_bytes(net, 16)
    assert each > 16 * 4 * 3 * 64
    assert hardware.lane_bytes(net, 32) > 1.5 * each
    assert hardware.lanes_that_fit(int(each * 41 / hardware.MEMORY_SHARE), net, 16, 256) == 32
    assert hardware.lanes_that_fit(each // 2, net, 16, 256) == 1
    assert hardware.lanes_that_fit(each * 10**6, net, 16, 256) == 256


def test_a_gpu_has_one_chunk_where_a_cpu_has_several():
    sizes, recipe = np.array([40, 33, 9, 47, 18]), Recipe(16, 1, False)
    assert len(chunks(range(5), sizes, recipe, 8)) > 1
    (whole,) = chunks(range(5), sizes, recipe, 8, gpu=True)
    assert whole.pad == 16
    assert [w.full for w in whole.work] == [2, 2, 2, 1, 0]


def test_a_gpus_arithmetic_is_exact_and_given_back():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (
        cudnn.allow_tf32,
        cudnn.deterministic,
        matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
    )
    with device_mode(torch.device("cuda")):
        assert (cudnn.allow_tf32, cudnn.deterministic, matmul.allow_tf32) == (False, True, False)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
    with device_mode(torch.device("cuda"), "tf32"):
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (True, True)
    after = (
        cudnn.allow_tf32,
        cudnn.deterministic,
        matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
    )
    assert after == before
