"""Steps that are recorded and replayed on a CPU: their bits, and what is not recorded; weights that rest."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from tests.round.training import build, trainer
from unskew import config, data
from unskew.core.client import Batch, Client, Out
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import Weights
from unskew.recorders.operators import Operators
from unskew.records.checkpoints import State
from unskew.round import recordings
from unskew.round import trainer as trainer_module
from unskew.round.loop import Loop
from unskew.round.recordings import Recording, StepRecordings
from unskew.round.run import Run
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

SHAPE = (3, 8, 8)


@pytest.fixture
def replays(monkeypatch) -> list[Recording]:
    """The recordings that were replayed; a step of each shape is recorded as soon as possible."""
    done: list[Recording] = []
    replay = Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda r, feed: done.append(r) or replay(r, feed))
    monkeypatch.setattr(Operators, "calls_before", 1)
    monkeypatch.setattr(StepRecordings, "_pays", lambda *_: True)
    return done


def trained(recorded: bool, module: nn.Module, method: str | Method = "fedavg", **given: Any):
    """Weights and losses of all replies of three rounds whose learning rates differ."""
    given = {"shape": SHAPE, "lanes": 4, "sizes": (40, 33, 21, 18, 7), **given}
    made, start = trainer(module, given.pop("shape"), method, **given)
    if not recorded:
        made.replays = None
    rounds = [replace(start, t=t, lr=start.lr / t) for t in (1, 2, 3)]
    replies = [r for sent in rounds for r in made.train(sent, range(5), {})]
    return {f"{i}/{n}": w for i, r in enumerate(replies) for n, w in {**r.weights, "loss": r.loss}.items()}


def network(*more: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(body, nn.Sequential(nn.Flatten(), *more), nn.Linear(128, 4))


GIVEN: list[dict[str, Any]] = [
    {"module": network(nn.Dropout(0.3)), "momentum": 0.9},
    {"module": network(nn.Dropout(0.3)), "lanes": 1, "optimiser": "adam", "lr": 0.001},
    {"module": network(), "optimiser": "adamw", "weight_decay": 0.1},
    {"module": build("cnn_small", SHAPE), "method": "naivemix", "workers": 2},
    {"module": build("cnn_small", SHAPE), "method": "fedsam", "lanes": 1},
    {"module": build("cnn_small", SHAPE), "method": "scaffold+feddecorr", "optimiser": "sign"},
    {"module": build("harnet", (1, 128, 3)), "shape": (1, 128, 3), "lanes": 1, "sizes": (20, 17, 9, 4, 2)},
]


@pytest.mark.parametrize("given", GIVEN)
def test_replayed_steps_have_the_bits_of_ordinary_ones(replays, given):
    expected, result = trained(False, **given), trained(True, **given)
    assert len(replays) > len(set(map(id, replays)))
    assert all(torch.equal(expected[n], t) for n, t in result.items())


class SeesRecording(nn.Module):
    """Computes something else while a step is recorded."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + len(_get_current_function_mode_stack()))


def test_a_module_that_computes_something_else_while_recorded_trains_as_without_recordings(replays):
    given = {"module": network(SeesRecording()), "lanes": 1}
    expected, result = trained(False, **given), trained(True, **given)
    assert all(torch.equal(expected[n], t) for n, t in result.items())


def test_a_model_that_draws_for_itself_is_not_recorded(replays):
    """A recording would repeat what was drawn when it was made."""
    module = network()
    made, start = trainer(module, SHAPE, lanes=1)
    made.fed.net.draws = True
    for t in (1, 2, 3):
        made.train(replace(start, t=t), [0, 1], {})
    assert not replays


def a_run(method: Any, **given: Any) -> Run:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 5, 280)
    x, x_test = rng.random((240, *SHAPE), np.float32), rng.random((40, *SHAPE), np.float32)
    samples = data.arrays(x, y[:240], x_test, y[240:])
    settings = {"rounds": 4, "epochs": 3, "batch": 8, "clients": 4, "samples": 16, "workers": 1}
    settings |= {"lr_decay": 0.5, "model": "cnn_small", "lanes": "1", **given}
    if isinstance(method, str):
        return resolve(config.build({**settings, "method": method}), samples)
    return resolve(config.build(settings), samples, method)


def rounds(loop: Loop, state: State, last: int, recorded: bool = True) -> State:
    """The state after round `last`."""
    if not recorded:
        loop.trainer.replays = None
    while state.t < last:
        state, _ = loop.round(state, state.t + 1)
    return state


def ends(run: Run, recorded: bool = True) -> tuple[dict[str, Tensor], Loop]:
    """(the weights after four rounds, the loop)."""
    loop = loop_of(run)
    return rounds(loop, loop.begin(), 4, recorded).weights, loop


def reading(factor: Callable[[Tensor, Client], float]) -> Part:
    """A loss with a factor that is no tensor."""

    @dataclass(frozen=True)
    class Reads(Part):
        name: ClassVar[str] = "reads"

        def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
            return factor(b.x.mean(), c) * out.logits.square().mean()

    return Reads()


def test_a_number_that_differs_between_rounds_is_read_in_each(replays):
    given = reading(lambda _, c: 0.1 * c.t + c.lr)
    (expected, _), (weights, loop) = ends(a_run(given), recorded=False), ends(a_run(given))
    assert replays
    assert not loop.trainer.replays.refused
    assert all(torch.equal(expected[n], t) for n, t in weights.items())


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (lambda t, _: 0.1 * float(t), "_local_scalar_dense"),
        (lambda t, _: 0.1 * float(t.numpy()), "Tensor.numpy"),
        (lambda t, _: 0.1 * len(t.tolist()) if t.dim() else 0.1 * t.tolist(), "Tensor.tolist"),
        (lambda t, _: 0.1 * c_float.from_address(t.untyped_storage().data_ptr()).value, recordings.DIFFERS),
    ],
)
def test_a_loss_that_reads_values_is_not_recorded_and_the_run_says_so_once(replays, factor, reason):
    """The last way is seen by the comparison only: a replay gives other bits than an ordinary step."""
    (expected, _), (weights, loop) = (
        ends(a_run(reading(factor)), recorded=False),
        ends(a_run(reading(factor))),
    )
    assert all(torch.equal(expected[n], t) for n, t in weights.items())
    (event,) = [e for e in loop.record.rows["events"] if e["code"] == "E128"]
    assert reason in event["text"]


@pytest.mark.parametrize("method", ["scaffold", "fedrep+fedrdn"])
def test_a_run_that_goes_on_with_no_recordings_ends_with_the_same_bits(replays, method):
    whole, _ = ends(a_run(method, lanes="4"))
    first, second = loop_of(a_run(method, lanes="4")), loop_of(a_run(method, lanes="4"))
    state = rounds(first, first.begin(), 2)
    second.begin()
    second.store = first.store
    weights = rounds(second, state, 4).weights
    assert replays
    assert all(torch.equal(whole[n], t) for n, t in weights.items())


def test_a_short_run_records_nothing_and_a_longer_one_does():
    """Recording pays from some six steps of a shape on: the second update's third step."""
    loop = loop_of(a_run("fedavg", epochs=1, rounds=9, clients=1))
    state = loop.begin()
    for t, count in enumerate((0, 0, 1, 1), 1):  # two steps a round
        state, _ = loop.round(state, t)
        stages = [s for stages in loop.trainer.replays.stages.values() for s in stages.values()]
        assert sum(r is not None for s in stages for r in s.recorded.values()) == count


@pytest.mark.parametrize(
    ("method", "given"),
    [("fedrep", {}), ("fedrep", {"optimiser": "adam", "lr": 0.01}), ("fedah", {"lanes": "4"})],
)
def test_weights_that_rest_in_all_lanes_are_left_out_and_change_no_bit(monkeypatch, method, given):
    resting = []
    mark = trainer_module.with_resting

    def noted(*args: Any) -> Any:
        plan = mark(*args)
        resting.append([step.resting for step in plan])
        return plan

    monkeypatch.setattr(trainer_module, "with_resting", noted)
    weights, _ = ends(a_run(method, **given))
    head, body = ({n for n in weights if n.startswith("head") is of_head} for of_head in (True, False))
    assert all(set(names) in (head, body) for plan in resting for names in plan)
    assert {frozenset(head), frozenset(body)} == {names for plan in resting for names in plan}
    monkeypatch.setattr(trainer_module, "with_resting", lambda clients, axis, views, plan, table: plan)
    expected, _ = ends(a_run(method, **given))
    assert all(torch.equal(expected[n], t) for n, t in weights.items())


def test_a_part_that_reads_gradients_reads_those_of_all_weights(monkeypatch):
    marked, mark = [], trainer_module.with_resting
    monkeypatch.setattr(
        trainer_module, "with_resting", lambda *args: marked.extend(plan := mark(*args)) or plan
    )
    ends(a_run("fedrep+clip_gradients"))
    assert marked
    assert not any(step.resting for step in marked)
